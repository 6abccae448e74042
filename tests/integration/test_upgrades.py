"""Runners of two versions beside each other: the metastore is migrated while one of the old version is at work."""

from pathlib import Path

import pytest

from tests.support.processes import runner_process
from tests.support.waiting import until
from tests.support.workbench import Workbench
from vitrina.errors import ConfigError
from vitrina.store import pipelines

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
