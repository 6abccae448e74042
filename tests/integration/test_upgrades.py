"""Runners of two versions beside each other: the metastore is migrated while one of the old version is at work."""

import importlib
from pathlib import Path

import psycopg
import pytest

from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import ConfigError, OtherVersion
from vitrina.store import leases, migrate, pipelines
from vitrina.store.database import Connection

ACCEPTED_PARTS: str = importlib.import_module("vitrina.store.migrations.versions.0017_accepted_parts").ACCEPTED_PARTS

# As a later migration may: whoever does not know how to hold a target there gets no claim.
LATER_MIGRATION = """
UPDATE etl.etl_pipelines SET holds_target = NULL WHERE claim_id IS NULL;
ALTER TABLE etl.etl_pipelines ADD CONSTRAINT later_form CHECK (holds_target LIKE 'later %') NOT VALID;
UPDATE etl.alembic_version SET version_num = '9999';
"""


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.source("CREATE TABLE content.films (id int PRIMARY KEY); INSERT INTO content.films VALUES (1)")
    workbench.pipeline("films", "SELECT id FROM content.films", target_key=["id"])
    return workbench


def test_a_runner_leaves_a_metastore_that_was_migrated_under_it_and_says_what_to_do(
    bench: Workbench, tmp_path: Path
) -> None:
    with runner_process(bench.settings, tmp_path, VITRINA_POLL_SECONDS="0.2") as runner:
        until(lambda: bool(bench.sql("SELECT id FROM etl.etl_runners")))
        bench.sql(LATER_MIGRATION)
        bench.request("films")
        assert runner.wait(timeout=120) != 0
    said = (tmp_path / "runner.log").read_text()
    assert "runner.other_version" in said
    assert "this metastore is of version 9999, upgrade Vitrina" in said
    assert "Traceback" not in said
    # It waits for a runner of the new version.
    assert bench.status("films") == "RUN_REQUESTED"
    assert bench.sql("SELECT id FROM etl.etl_runners") == []


def test_a_claim_that_the_new_version_refuses_says_nothing_about_the_pipeline(bench: Workbench) -> None:
    """The migration came between the runner's look at the version and its claim."""
    bench.request("films")
    bench.sql(LATER_MIGRATION)
    with pytest.raises(ConfigError, match="upgrade Vitrina"):
        bench.claim()
    found = pipelines.find(bench.metastore, "films")
    assert found is not None
    assert (found["status"], found["needs_attention"]) == ("RUN_REQUESTED", {})


def test_a_run_that_breaks_at_the_migration_is_given_back(bench: Workbench) -> None:
    bench.request("films")
    claim = bench.claim()
    bench.sql(LATER_MIGRATION)
    bench.perform(claim)
    assert bench.status("films") == "RUN_REQUESTED"
    assert bench.last_run("films")["status"] == "CANCELLED"
    assert "9999" in bench.last_run("films")["error_message"]


def test_a_runner_that_writes_checkpoints_in_the_form_of_before_gets_no_claim(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.request("films")
    monkeypatch.setattr(leases, "CHECKPOINT_FORMAT", None)  # as of a runner that does not know of it
    monkeypatch.setattr(migrate, "require_current", _of_the_version_before)
    with pytest.raises(ConfigError, match="upgrade Vitrina"):
        bench.claim()
    assert bench.status("films") == "RUN_REQUESTED"
    monkeypatch.undo()
    assert bench.claim().name == "films"  # which the version of now gets


def _of_the_version_before(connection: Connection) -> None:
    raise ConfigError("this metastore is of version 0017, upgrade Vitrina")


def test_the_form_of_a_claim_ends_with_the_claim(bench: Workbench) -> None:
    """Else a runner of the version before would find it set by one of this version, and go through."""
    bench.run("films")
    found = pipelines.find(bench.metastore, "films")
    assert found is not None
    assert (found["claim_id"], found["claim_format"]) == (None, None)


def test_a_load_whose_checkpoint_the_version_before_wrote_is_continued(bench: Workbench) -> None:
    bench.sql("INSERT INTO content.films SELECT generate_series(2, 50)")
    bench.change("films", batch_size=10, options={"route": "arrow"})
    bench.request("films")
    bench.lose_a_runner("batch.committed:crash:3")
    bench.recover()
    [found] = bench.sql("SELECT segments FROM etl.etl_state")
    [(epoch, [[first, last]])] = found["segments"].items()
    bench.sql(f"""UPDATE etl.etl_state SET segments = '{{"{epoch}": {last}}}'""")  # as it was until then

    bench.perform(bench.claim())

    run = bench.last_run("films")
    assert (run["status"], run["rows_read"]) == ("SUCCESS", 50 - 10 * (last - first + 1))
    assert bench.sql("SELECT count(*) AS films FROM analytics.films") == [{"films": 50}]


def test_the_migration_rewrites_checkpoints_of_unfinished_loads(bench: Workbench) -> None:
    pipeline = bench.sql("SELECT id FROM etl.etl_pipelines")[0]["id"]
    bench.sql(f"""INSERT INTO etl.etl_state (pipeline_id, segments) VALUES ('{pipeline}', '{{"7": 40, "9": 44}}')""")
    rewriting, _, _ = ACCEPTED_PARTS.partition("COMMENT ON COLUMN")
    bench.sql(rewriting)
    assert bench.sql("SELECT segments FROM etl.etl_state") == [{"segments": {"7": [[0, 40]], "9": [[0, 44]]}}]
    bench.sql(rewriting)
    assert bench.sql("SELECT segments FROM etl.etl_state") == [{"segments": {"7": [[0, 40]], "9": [[0, 44]]}}]


def test_a_look_at_a_metastore_whose_tables_have_changed_says_which_version_it_is(bench: Workbench) -> None:
    bench.sql("ALTER TABLE etl.etl_pipelines RENAME COLUMN enabled TO is_enabled")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        leases.look(bench.metastore, count_to=1)
    bench.sql("UPDATE etl.alembic_version SET version_num = '9999'")
    with pytest.raises(OtherVersion, match="upgrade Vitrina"):
        leases.look(bench.metastore, count_to=1)
