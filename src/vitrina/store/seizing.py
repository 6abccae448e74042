"""Build the statements by which a claim takes its checkpoint and discards what others left unfinished on its target.

A claim takes the checkpoint in its own statement if the metastore's database keeps it; otherwise the run does. Only
runs discard, because many claims end before anything is written, for example if a source does not answer.
"""

from psycopg import sql

from vitrina.ports.checkpoint import OF_THE_LOAD
from vitrina.store import databases, pipelines

METASTORE_TABLE = sql.Identifier("etl", "etl_state")

# Identifies a target: the database, however it is reached, and the table or index.
HELD_TARGET = sql.SQL("'database ' || {} || '|' || {}").format(databases.OF_PIPELINE, pipelines.FINAL_TARGET)

# Named one by one: a statement that is prepared is refused when a migration has changed its columns.
COLUMNS = sql.SQL(", ").join(
    sql.Identifier("s", name)
    for name in (
        *("last_processed_key", "last_processed_id", "safe_upto", "held_upto", "batch_no", "segments", "rows"),
        *("stage", "fingerprint", "load_started_at", "identity"),
    )
)

# `Checkpoint.without_load`, in SQL.
NO_LOAD = sql.SQL(
    """
    segments = '{{}}', rows = 0, stage = NULL, fingerprint = NULL, load_started_at = NULL,
    last_processed_key = NULL, last_processed_id = NULL, identity = s.identity - {}::text[]
    """
).format(sql.Literal(list(OF_THE_LOAD)))


# True for unfinished loads on a target, except those of one pipeline and of claims.
OF_OTHERS = sql.SQL(
    """
    s.pipeline_id = p.id AND s.stage IS NOT NULL AND p.id <> %(id)s AND p.claim_id IS NULL AND {} = %(target)s
    """
).format(HELD_TARGET)
# Its parameters are the values of the claim, and the target that it holds.
DISCARD_OTHERS = sql.SQL("UPDATE etl.etl_state s SET {} FROM etl.etl_pipelines p WHERE {}").format(NO_LOAD, OF_OTHERS)


def seizing(claimed: sql.Composable, table: sql.Identifier = METASTORE_TABLE) -> sql.Composed:
    """Build the statement that takes the row of a claim. `claimed` selects its pipeline, epoch, ID and run."""
    return sql.SQL(
        """
        INSERT INTO {table} AS s (pipeline_id, epoch, claim_id, run_id)
        {claimed}
        ON CONFLICT (pipeline_id) DO UPDATE
        SET epoch = excluded.epoch, claim_id = excluded.claim_id, run_id = excluded.run_id
        WHERE s.epoch < excluded.epoch OR (s.epoch = excluded.epoch AND s.claim_id = excluded.claim_id)
        RETURNING {columns}
        """
    ).format(table=table, claimed=claimed, columns=COLUMNS)


# The values of a claim, for a statement that follows the claim.
OF_CLAIM = sql.SQL("SELECT %(id)s::uuid, %(epoch)s::bigint, %(claim)s::uuid, %(run)s::uuid")
