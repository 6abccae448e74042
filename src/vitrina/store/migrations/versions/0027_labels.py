"""Announce changes of labels and owners, which create no version: a list is not asked for again to find them."""

from alembic import op

revision = "0027"
down_revision = "0026"

STATEMENTS = """
CREATE TRIGGER announce_labels AFTER UPDATE OF labels, managed_by ON etl.etl_pipelines
    FOR EACH ROW
    WHEN ((OLD.labels, OLD.managed_by) IS DISTINCT FROM (NEW.labels, NEW.managed_by) AND OLD.version = NEW.version)
    EXECUTE FUNCTION etl.announce_definition();
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
