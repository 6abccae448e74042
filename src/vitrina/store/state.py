"""Move the checkpoint row, where the next batch starts. It is in the target's database and moves only with the data."""

from typing import Any
from uuid import UUID

from psycopg import sql
from psycopg.types.json import Jsonb

from vitrina.errors import LeaseLost
from vitrina.ports.checkpoint import MIRROR_OF, OF_THE_TARGET, Accepted, Checkpoint
from vitrina.store import seizing
from vitrina.store.database import Connection
from vitrina.store.leases import Claim
from vitrina.store.prepared import Statement

METASTORE_TABLE = seizing.METASTORE_TABLE
# The same row in a target database that is not the metastore; `etl_state` mirrors it.
LEDGER_TABLE = sql.Identifier("etl_stage", "ledger")

UNKNOWN_DATABASE = "unknown"


def seize(connection: Connection, claim: Claim, table: sql.Identifier = METASTORE_TABLE) -> Checkpoint:
    """Take the checkpoint row from every older epoch; from now on the fence of a late runner matches no row."""
    row = _SEIZE[table.as_string()].fetch_one(connection, of_claim(claim))
    if row is None:
        raise LeaseLost(f"pipeline {claim.name}: a newer epoch than {claim.epoch} holds the checkpoint")
    return read(row)


def find_seized(connection: Connection, claim: Claim) -> Checkpoint | None:
    """Read the checkpoint that the claim took, or an earlier attempt of its run. Return None if it is not the claim's.

    It is not if another database keeps it, or if the claim is lost. It has to be taken again, with the lock on the
    pipeline's row, to discard loads of others.
    """
    row = _FIND_SEIZED.fetch_one(connection, of_claim(claim) | {"target": claim.row["holds_target"]})
    return read(row) if row else None


_FIND_SEIZED = Statement(
    sql.SQL(
        """
        SELECT {columns}
        FROM etl.etl_state s JOIN etl.etl_pipelines p ON p.id = s.pipeline_id
        WHERE s.pipeline_id = %(id)s AND s.epoch = %(epoch)s AND s.claim_id = %(claim)s
          AND p.epoch = %(epoch)s AND p.claim_id = %(claim)s
          AND NOT EXISTS (SELECT FROM etl.etl_state s, etl.etl_pipelines p WHERE {of_others})
        """
    )
    .format(columns=seizing.COLUMNS, of_others=seizing.OF_OTHERS)
    .as_bytes()
)


def of_claim(claim: Claim) -> dict[str, Any]:
    """Return the values by which a statement finds what a claim holds."""
    return {"id": claim.pipeline_id, "epoch": claim.epoch, "claim": claim.claim_id, "run": claim.run_id}


_SEIZE = {
    table.as_string(): Statement(seizing.seizing(sql.SQL("{} WHERE true").format(seizing.OF_CLAIM), table).as_bytes())
    for table in (METASTORE_TABLE, LEDGER_TABLE)
}


def advance(
    connection: Connection, claim: Claim, checkpoint: Checkpoint, table: sql.Identifier = METASTORE_TABLE
) -> None:
    """Move the checkpoint. This fence is the last statement of a transaction that changes target or checkpoint.

    Raise `LeaseLost` if it changes no row: a newer claim holds the checkpoint, and the transaction rolls back.
    """
    changed = _ADVANCE[table.as_string()].execute(connection, of_claim(claim) | values_of(checkpoint))
    if not changed:
        raise LeaseLost(f"pipeline {claim.name}: another runner took over after epoch {claim.epoch}")


def values_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the values of `ADVANCE`, by name."""
    kept = {"segments": Jsonb(checkpoint.accepted.as_json()), "identity": Jsonb(checkpoint.identity)}
    return vars(checkpoint) | kept


_ADVANCING = sql.SQL(
    """
    UPDATE {table}
    SET last_processed_key = %(last_key)s, last_processed_id = %(last_id)s,
        safe_upto = %(safe_upto)s, held_upto = %(held_upto)s,
        batch_no = %(batch_no)s, segments = %(segments)s, rows = %(rows)s,
        stage = %(stage)s, fingerprint = %(fingerprint)s, load_started_at = %(load_started_at)s,
        identity = %(identity)s, run_id = %(run)s, updated_at = clock_timestamp()
    WHERE pipeline_id = %(id)s AND epoch = %(epoch)s AND claim_id = %(claim)s
    """
)
ADVANCE = _ADVANCING.format(table=METASTORE_TABLE)
_ADVANCE = {
    table.as_string(): Statement(_ADVANCING.format(table=table).as_bytes()) for table in (METASTORE_TABLE, LEDGER_TABLE)
}


def mirror(connection: Connection, claim: Claim, checkpoint: Checkpoint, of: str | None) -> None:
    """Copy the ledger of a remote target, in the database `of`, to the metastore for display.

    A run never resumes from the copy, neither into that target nor into one of that name in the metastore's database.
    """
    seize(connection, claim)
    advance(connection, claim, checkpoint.identified(**{MIRROR_OF: of or UNKNOWN_DATABASE}))


def find(connection: Connection, pipeline_id: UUID) -> dict[str, Any] | None:
    """Find the checkpoint row as users see it."""
    return _FIND.fetch_one(connection, [pipeline_id])


_FIND = Statement(b"SELECT * FROM etl.etl_state WHERE pipeline_id = %s")


def peek(connection: Connection, pipeline_id: UUID) -> Checkpoint:
    """Read the checkpoint without taking it."""
    row = find(connection, pipeline_id)
    return read(row) if row else Checkpoint()


def find_reset(connection: Connection, pipeline_id: UUID) -> Checkpoint | None:
    """Find what the checkpoint was reset to since the latest claim, if it was."""
    row = find(connection, pipeline_id)
    return read(row) if row and row["claim_id"] is None else None


def reset(connection: Connection, pipeline_id: UUID, *, cursor: str | None = None) -> None:
    """Start from the beginning, or from a cursor value. The caller has made sure that no runner is active.

    Then the row belongs to no claim; the ledger of a remote target takes it over with the next claim.
    """
    connection.execute(
        """
        INSERT INTO etl.etl_state AS s (pipeline_id, safe_upto) VALUES (%(id)s, %(cursor)s)
        ON CONFLICT (pipeline_id) DO UPDATE
        SET safe_upto = %(cursor)s, held_upto = NULL, last_processed_key = NULL, last_processed_id = NULL,
            segments = '{}', rows = 0, stage = NULL, fingerprint = NULL, load_started_at = NULL,
            identity = (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(s.identity)
                        WHERE key = ANY(%(kept)s)),
            claim_id = NULL, updated_at = clock_timestamp()
        """,
        {"id": pipeline_id, "cursor": cursor, "kept": list(OF_THE_TARGET)},
    )


def discard_load(connection: Connection, claim: Claim) -> bool:
    """Discard this claim's unfinished load. The next claim updates the ledger of a remote target."""
    return bool(
        connection.execute(
            sql.SQL(
                "UPDATE etl.etl_state s SET {no_load}"
                " WHERE pipeline_id = %(id)s AND claim_id = %(claim)s AND stage IS NOT NULL"
            ).format(no_load=seizing.NO_LOAD),
            of_claim(claim),
        ).rowcount
    )


def discard_loads_of_others(connection: Connection, claim: Claim) -> int:
    """Discard unfinished loads of other pipelines on this target: they are older than what we are about to write."""
    return _DISCARD_OTHERS.execute(connection, of_claim(claim) | {"target": claim.row["holds_target"]})


_DISCARD_OTHERS = Statement(seizing.DISCARD_OTHERS.as_bytes())


def read(row: dict[str, Any]) -> Checkpoint:
    """Read a checkpoint from its row."""
    return Checkpoint(
        last_key=row["last_processed_key"],
        last_id=row["last_processed_id"],
        safe_upto=row["safe_upto"],
        held_upto=row["held_upto"],
        batch_no=row["batch_no"],
        accepted=Accepted.from_json(row["segments"]),
        rows=row["rows"],
        stage=row["stage"],
        fingerprint=row["fingerprint"],
        load_started_at=row["load_started_at"],
        identity=row["identity"],
    )
