"""Many clients at once on few pipelines: no 5xx, no lost update, no illegal transition in the recorded history."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.api import api_process
from tests.support.crowd import a_runner, define_pipelines, play
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.status import MOVES
from vitrina.store.database import Connection

# 200 of them for a minute, with figures: python -m bench.control_plane
CLIENTS, SECONDS = 60, 6
LEGAL = {(move.source, move.target) for move in MOVES}

pytestmark = pytest.mark.timeout(300)


def test_many_clients_on_few_pipelines(database: Settings, metastore: Connection, tmp_path: Path) -> None:
    _, secret = tokens.create(metastore, Caller("setup", Role.ADMIN), name="load", role=Role.OPERATOR)
    define_pipelines(metastore)
    with api_process(database, tmp_path) as (_, url), a_runner(database):
        heard = asyncio.run(play(url, secret, clients=CLIENTS, seconds=SECONDS))

    assert heard.requests > CLIENTS
    assert set(heard.statuses) <= {200, 202, 409, 412}
    assert sum(heard.patched.values()) > 0
    refuse_lost_updates(metastore, heard.patched)
    refuse_illegal_moves(metastore)


def refuse_lost_updates(metastore: Connection, patched: "Counter[str]") -> None:
    """Every accepted change raised the version by one, and none was overwritten unseen."""
    for row in metastore.execute("SELECT name, version, batch_size FROM etl.etl_pipelines").fetchall():
        assert row["version"] == 1 + patched[row["name"]], row
        # Each client wrote the number that it had read plus one.
        assert row["batch_size"] == 5000 + patched[row["name"]], row


def refuse_illegal_moves(metastore: Connection) -> None:
    history = metastore.execute(
        "SELECT payload ->> 'pipeline' AS name, payload ->> 'from' AS before, payload ->> 'to' AS after"
        " FROM etl.etl_events WHERE topic = 'status' ORDER BY id"
    ).fetchall()
    assert history
    at: dict[str, str] = {}
    for move in history:
        # No move was made from a status that was no longer there.
        assert move["before"] == at.get(move["name"], "IDLE"), move
        assert (move["before"], move["after"]) in LEGAL, move
        at[move["name"]] = move["after"]
