"""Compare the table of limits in docs/security.md with the code."""

import re
from pathlib import Path

import pytest

from vitrina import definition
from vitrina.checks import previews
from vitrina.connectors.postgres import copy, sampling, sessions
from vitrina.loads import steps
from vitrina.ports import batch
from vitrina.settings import Settings
from vitrina.store import leases, migrate

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def _default(name: str) -> str:
    return f"{Settings.model_fields[name].default:,g}"


def _megabytes(size: int) -> str:
    return f"{size >> 20} MB"


LIMITS = {
    "length of a query": [f"{definition.MAX_QUERY_LENGTH:,} characters"],
    "steps of a task plan": [str(definition.MAX_TASKS)],
    "batch": [
        f"{definition.MAX_BATCH_SIZE:,} rows",
        _megabytes(batch.MAX_BATCH_BYTES),
        _megabytes(copy.MAX_BATCH_BYTES),
    ],
    "connections to the API": [f"VITRINA_API_MAX_CONNECTIONS` ({_default('api_max_connections')})"],
    "a field of a log line, a message of a run": [f"{leases.MAX_ERROR_LENGTH:,} characters"],
    "one value that travels through a runner": [f"VITRINA_MAX_VALUE_MB` ({_default('max_value_mb')})"],
    "one statement": [f"VITRINA_STATEMENT_TIMEOUT_SECONDS` ({_default('statement_timeout_seconds')})"],
    "a preview": [
        f"{sessions.WAITED_FOR_SECONDS:g} s,",
        f"{_megabytes(previews.MAX_BYTES)} of the query",
        f"steps {previews.STEP_SECONDS:g} s",
    ],
    "rows that steps are tried with before a run": [f"{steps.SAMPLE_ROWS:,} of up to {_megabytes(steps.SAMPLE_BYTES)}"],
    "a reference query of a step": [_megabytes(sampling.MAX_REFERENCE_BYTES)],
    "temporary files": [migrate.RESERVED_READER_DEFAULTS["temp_file_limit"].replace("GB", " GB")],
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_of_the_page_is_that_of_the_code(what: str) -> None:
    found = re.search(rf"^\| {re.escape(what)} \| (.*) \| [^|]* \|$", PAGE, re.MULTILINE)

    assert found, f"docs/security.md has no row {what!r}"
    for said in LIMITS[what]:
        assert said in found[1]
