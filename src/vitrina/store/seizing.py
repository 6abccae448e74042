"""Build the statements by which a claim takes its checkpoint and discards what others left unfinished on its target.

A claim executes them in its own statement if the metastore's database keeps the checkpoint; otherwise the run does.
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


def discarding(pipeline: sql.Composable, target: sql.Composable) -> sql.Composed:
    """Build the statement that discards unfinished loads on a target, except those of one pipeline and of claims."""
    return sql.SQL(
        """
        UPDATE etl.etl_state s SET {no_load}
        FROM etl.etl_pipelines p
        WHERE s.pipeline_id = p.id AND s.stage IS NOT NULL AND p.id <> {pipeline} AND p.claim_id IS NULL
          AND {held} = {target}
        """
    ).format(no_load=NO_LOAD, held=HELD_TARGET, pipeline=pipeline, target=target)


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
