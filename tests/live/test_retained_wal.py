"""A live pipeline that is paused holds nothing of its source's log: what it has missed waits in the metastore."""

from tests.live.marts import CALLER, FILMS, Marts
from vitrina.services import pipelines as services

LIMIT_BYTES = 64 << 20


def test_a_paused_pipeline_leaves_little_of_the_log_on_the_source(marts: Marts) -> None:
    marts.live("films")
    marts.start_runner()
    marts.await_following("films")
    services.request_pause(marts.metastore, CALLER, "films")
    marts.await_true("paused", lambda: marts.row("films")["status"] == "PAUSED")
    marts.kill(marts.runners[0])
    marts.sql("UPDATE content.film SET title = 'missed' WHERE id < 20; DELETE FROM content.film WHERE id = 30")
    _write_log(marts, 2 * LIMIT_BYTES)
    assert _retained(marts) > LIMIT_BYTES, "without a runner the slot keeps it"
    marts.start_runner()
    marts.await_true("the log is let go", lambda: _retained(marts) < LIMIT_BYTES)
    assert marts.row("films")["status"] == "PAUSED"
    services.resume(marts.metastore, CALLER, "films")
    marts.await_equal("films", FILMS)
    assert "loads_because" not in marts.run("films")["metrics"], "what was missed was followed"


def _write_log(marts: Marts, size: int) -> None:
    """Write to the log what concerns nobody, as the other tables of a source do."""
    marts.sql(
        f"SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1 << 20)) FROM generate_series(1, {size >> 20})"
    )


def _retained(marts: Marts) -> int:
    [row] = marts.sql(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 AS n FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    return int(row["n"])
