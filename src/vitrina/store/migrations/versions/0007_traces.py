"""Store the trace of a request, to which the run that answers it belongs too."""

from alembic import op

revision = "0007"
down_revision = "0006"

STATEMENTS = """
-- As W3C writes it: 00-<trace id>-<span id>-<flags>.
ALTER TABLE etl.etl_pipelines ADD COLUMN requested_trace text;
ALTER TABLE etl.etl_runs ADD COLUMN traceparent text;
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(STATEMENTS)
