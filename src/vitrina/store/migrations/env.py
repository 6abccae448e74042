"""Run Alembic on the connection that `store.migrate` passes, inside its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="alembic_version",
    version_table_schema="etl",
    transactional_ddl=True,
)
context.run_migrations()
