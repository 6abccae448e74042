"""Pipelines as files: export, diff and apply, with every mistake named by file, line and column."""

import string
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.api import create, problem
from vitrina.client import Client
from vitrina.definition import Definition
from vitrina.errors import Conflict, Invalid, NotFound
from vitrina.schemas import ApplyReport
from vitrina.services import manifest_files, manifests, versions
from vitrina.status import Status
from vitrina.store.database import Connection

FILMS = """\
apiVersion: vitrina/v1
kind: Pipeline
metadata:
  name: films
  labels:
    team: catalogue
spec:
  description: One row a film.
  source_query: |-
    SELECT id, title
    FROM content.film_work
  target_table: analytics.films
  target_key:
  - id
  batch_size: 100
  options:
    allow_shrink: true
"""
RATINGS = FILMS.replace("films", "ratings").replace("    allow_shrink: true\n", "    allow_empty: true\n")


@pytest.fixture
def client(api: httpx.Client) -> Iterator[Client]:
    with Client(str(api.base_url)) as made:
        yield made


def actions(report: ApplyReport) -> list[tuple[str, str]]:
    return [(item.name, item.action) for item in report.items]


# --- round trips --------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_pipeline_and_comes_back_byte_for_byte(client: Client) -> None:
    report = client.apply(FILMS)
    assert actions(report) == [("films", "create")]
    found = client.get_pipeline("films")
    assert found.source_query == "SELECT id, title\nFROM content.film_work"
    assert (found.labels, found.managed_by) == ({"team": "catalogue"}, "file")
    assert client.export() == client.export(["films"]) == FILMS
    assert actions(client.apply(client.export())) == [("films", "unchanged")]
    assert client.get_pipeline("films").version == 1


def test_a_change_is_shown_by_its_path_and_makes_a_version(client: Client) -> None:
    client.apply(FILMS)
    changed = FILMS.replace("100", "200").replace("catalogue", "core").replace("allow_shrink", "allow_empty")
    for dry_run in (True, False):
        report = client.apply(changed, dry_run=dry_run)
        assert actions(report) == [("films", "update")]
        assert [(c.path, c.before, c.after) for c in report.items[0].changes] == [
            ("batch_size", 100, 200),
            ("options.allow_empty", None, True),
            ("options.allow_shrink", True, None),
            ("labels.team", "catalogue", "core"),
        ]
    assert client.export() == changed
    assert [v.change_summary for v in client.list_versions("films")] == ["changed batch_size, options", "created"]


def test_a_dry_run_changes_nothing(client: Client, api_metastore: Connection) -> None:
    assert actions(client.apply({"a.yaml": FILMS, "b.yaml": RATINGS}, dry_run=True)) == [
        ("films", "create"),
        ("ratings", "create"),
    ]
    assert client.list_pipelines() == []
    row = api_metastore.execute("SELECT count(*) AS n FROM etl.etl_audit").fetchone()
    assert row
    assert row["n"] == 0


def test_all_or_nothing(client: Client) -> None:
    client.apply(FILMS)
    # The second document is well formed, but its target belongs to a pipeline that no file names.
    taken = RATINGS.replace("analytics.ratings", "analytics.films")
    with pytest.raises(Conflict, match=r"target analytics\.films is already written by pipeline"):
        client.apply(FILMS.replace("100", "200") + "---\n" + taken)
    assert client.get_pipeline("films").batch_size == 100
    assert [p.name for p in client.list_pipelines()] == ["films"]


def test_two_pipelines_may_swap_their_targets_in_one_apply(client: Client) -> None:
    client.apply(FILMS + "---\n" + RATINGS)
    swapped = FILMS.replace("analytics.films", "analytics.ratings") + "---\n"
    swapped += RATINGS.replace("analytics.ratings", "analytics.films")
    client.apply(swapped)
    assert client.get_pipeline("films").target_table == "analytics.ratings"


def test_prune_deletes_what_came_from_files_and_is_gone_there(api: httpx.Client, client: Client) -> None:
    create(api, name="by_hand")
    client.apply(FILMS + "---\n" + RATINGS)
    client.apply(FILMS.replace("films", "elsewhere"), source="other-repository")
    assert actions(client.apply(FILMS)) == [("films", "unchanged")]
    pruned = client.apply(FILMS, prune=True)
    assert actions(pruned) == [("films", "unchanged"), ("ratings", "delete")]
    assert [p.name for p in client.list_pipelines()] == ["by_hand", "elsewhere", "films"]


def test_applying_takes_over_a_pipeline_made_by_hand(api: httpx.Client, client: Client) -> None:
    create(api, name="films")
    report = client.apply(client.export())
    assert [(c.path, c.before, c.after) for c in report.items[0].changes] == [("managed_by", None, "file")]
    assert client.get_pipeline("films").managed_by == "file"


def test_what_a_run_depends_on_is_locked_for_files_too(client: Client, api_metastore: Connection) -> None:
    client.apply(FILMS)
    api_metastore.execute("UPDATE etl.etl_pipelines SET status = %s", [Status.RUNNING])
    with pytest.raises(Conflict, match="source_query cannot change during a run"):
        client.apply(FILMS.replace("SELECT id, title", "SELECT id"))
    assert actions(client.apply(FILMS.replace("100", "200"))) == [("films", "update")]
    with pytest.raises(Conflict, match="cannot be deleted now"):
        client.apply(RATINGS, prune=True)


def test_exporting_what_is_not_there(client: Client) -> None:
    with pytest.raises(NotFound, match="there is no pipeline 'nobody'"):
        client.export(["nobody"])
    assert client.export() == ""


def test_empty_documents_are_nothing(client: Client) -> None:
    assert client.apply("").items == []
    assert client.apply("---\n# only a remark\n---\n").items == []


def test_json_is_yaml_too(client: Client) -> None:
    text = '{"apiVersion": "vitrina/v1", "kind": "Pipeline", "metadata": {"name": "j"}, "spec": {"target_table":'
    client.apply(text + ' "analytics.j", "source_query": "SELECT 1 AS id"}}')
    assert client.get_pipeline("j").target_table == "analytics.j"


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch_size: 100", "batch_size: 0", "f.yaml:16:15: batch_size must be greater than or equal to 1, not 0"),
        ("batch_size: 100", "batch_size: true", "f.yaml:16:15: batch_size must be a valid integer, not true"),
        ("batch_size: 100", "bach_size: 100", "f.yaml:16:14: bach_size is not a field that can be set here"),
        ("analytics.films", "public.users", "f.yaml:13:17: target_table 'public.users' is not allowed here"),
        ("SELECT id", "DELETE FROM x", "f.yaml:10:17: line 1, column 1: "),
        ("allow_shrink: true", "allow_shrink: 1", "f.yaml:18:19: options.allow_shrink must be a valid boolean, not 1"),
        ("name: films", "name: 7", "f.yaml:5:9: name must be a valid string, not 7"),
        ("  name: films\n", "", "f.yaml:5:3: metadata.name is required"),
        ("vitrina/v1", "vitrina/v2", "f.yaml:2:13: apiVersion must be vitrina/v1"),
        ("kind: Pipeline", "kind: Deployment", "f.yaml:3:7: kind must be Pipeline"),
        ("kind: Pipeline\n", "", "f.yaml:2:1: kind must be Pipeline"),
        ("spec:", "specs:", "f.yaml:9:3: specs is not a part of a document"),
        ("  - id", "  - [id]", "f.yaml:15:5: target_key.0 must be a valid string"),
        ("team: catalogue", "team: 5", "f.yaml:7:11: label team must be a string of up to 200 characters"),
        ("  batch_size: 100\n", "  batch_size: 100\n  batch_size: 9\n", "f.yaml:17:3: batch_size is given twice"),
        ("batch_size: 100", "batch_size: [1", "f.yaml:17:10: "),
        ("batch_size: 100", "batch_size: *other", "f.yaml:16:15: aliases (*other) are not supported"),
        (
            "batch_size: 100",
            "batch_size: !!python/object:os.system {}",
            "f.yaml:16:15: !!python/object:os.system is not supported",
        ),
        (
            "batch_size: 100",
            "batch_size: 2026-02-30",
            "f.yaml:16:15: batch_size must be a valid integer",
        ),
        ("batch_size: 100", "\tbatch_size: 100", "f.yaml:16:3: "),
        ("batch_size: 100", "? [a]\n  : 1", "f.yaml:16:5: a field's name is a text"),
    ],
)
def test_every_mistake_has_its_place(client: Client, old: str, new: str, message: str) -> None:
    assert old in FILMS
    with pytest.raises(Invalid) as caught:
        client.apply({"f.yaml": "# a remark\n" + FILMS.replace(old, new)})
    assert message in str(caught.value), str(caught.value)
    assert client.list_pipelines() == []


def test_plain_fields_are_told_from_a_document(client: Client) -> None:
    with pytest.raises(Invalid, match=r"^f\.yaml:1:1: a document has apiVersion: .* `vitrina pipelines create -f`"):
        client.apply({"f.yaml": "name: films\nsource_query: SELECT id FROM content.films\n"})


def test_every_mistake_in_every_file_is_said_at_once(client: Client) -> None:
    with pytest.raises(Invalid) as caught:
        client.apply(
            {
                "a.yaml": FILMS.replace("100", "0"),
                "b.yaml": RATINGS.replace("analytics.ratings", "public.ratings") + "---\n" + RATINGS,
                "c.yaml": RATINGS,
            }
        )
    assert [(field.path, field.message.partition(": ")[0], field.code) for field in caught.value.fields] == [
        ("spec.batch_size", "a.yaml:15:15", "invalid"),
        ("spec.target_table", "b.yaml:12:17", "forbidden_target"),
        ("metadata.name", "c.yaml:4:9", "repeated"),
    ]


def test_without_a_file_name_line_and_column_are_said_in_words(client: Client) -> None:
    with pytest.raises(Invalid, match="line 15, column 15: batch_size must be"):
        client.apply(FILMS.replace("100", "0"))


@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000, "a: " + "x" * 5_000_000, "\x00"])
def test_hostile_texts_are_answered(client: Client, text: str) -> None:
    with pytest.raises(Invalid):
        client.apply(text)
    assert client.health().status == "ok"


def test_an_owner_s_name_is_checked(api: httpx.Client) -> None:
    response = api.post("/api/v1/apply", json={"documents": "", "managed_by": "no\nlines"})
    assert response.status_code == 422
    assert problem(response)["errors"][0]["path"] == "managed_by"


# --- the schema for editors ---------------------------------------------------------------------------------------


def test_the_schema_accepts_what_apply_accepts_and_refuses_typing_errors(client: Client) -> None:
    validator = jsonschema_rs.validator_for(client.pipeline_schema())
    good = yaml.safe_load(FILMS)
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {"kind": "Pipelin"})
    assert not validator.is_valid(good | {"spec": good["spec"] | {"bach_size": 1}})
    assert not validator.is_valid(good | {"spec": good["spec"] | {"batch_size": 0}})


# --- any pipeline -------------------------------------------------------------------------------------------------

NAMES = st.text(string.ascii_letters + string.digits, min_size=1, max_size=12)
# Everything that Postgres can store and UTF-8 can carry.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=60)
# Postgres knows no negative zero.
FLOATS = st.floats(-1e9, 1e9, width=32).map(lambda number: number + 0.0)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "allow_shrink": st.booleans(),
        "lookback_seconds": st.floats(0, 1e6) | st.integers(0, 100),
        "stamps": st.lists(NAMES, max_size=2),
        "max_attempts": st.none() | st.integers(1, 20),
        "cursor_timezone": st.none() | TEXTS,
    },
)
TASKS: st.SearchStrategy[list[dict[str, Any]]] = st.just([]) | st.builds(
    lambda params: [
        {"order_index": 0, "task_type": "SQL", "body": "SELECT 1 AS id"},
        {"order_index": 1, "task_type": "PYTHON", "body": "step", "params": params},
    ],
    st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
)


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(NAMES)
    remark = draw(TEXTS).replace("*/", "").replace("/*", "")
    return {
        "name": name,
        "description": draw(TEXTS),
        "source_query": f"SELECT 1 AS id /* {remark} */",
        "target_table": f"analytics.t_{name.lower()}",
        "target_key": draw(st.none() | st.just(["id"])),
        "batch_size": draw(st.integers(1, 1_000_000)),
        "enabled": draw(st.booleans()),
        "schedule_interval": draw(st.sampled_from([None, "30s", "0 3 * * *"])),
        "options": draw(OPTIONS),
        "tasks": draw(TASKS),
    }


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(definitions(), st.dictionaries(NAMES, TEXTS, max_size=2))
def test_any_definition_survives_being_written_and_read(fields: dict[str, Any], labels: dict[str, str]) -> None:
    definition = Definition.model_validate(fields)
    row = versions.snapshot_of(definition) | {"labels": labels}
    text = manifest_files.write([manifests.manifest_of(row)])
    document = manifest_files.read(text)[0].content
    again = Definition.model_validate(document["spec"] | {"name": document["metadata"]["name"]})
    assert versions.snapshot_of(again) == versions.snapshot_of(definition)
    assert document["metadata"].get("labels", {}) == labels
    assert manifest_files.write([manifests.manifest_of(versions.snapshot_of(again) | {"labels": labels})]) == text


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(definitions(), min_size=1, max_size=3, unique_by=lambda fields: fields["name"].lower()))
def test_export_and_apply_are_each_other_s_inverse(client: Client, wanted: list[dict[str, Any]]) -> None:
    text = manifest_files.write(
        [
            manifests.manifest_of(versions.snapshot_of(Definition.model_validate(fields)) | {"labels": {}})
            for fields in sorted(wanted, key=lambda fields: str(fields["name"]))
        ]
    )
    client.apply("", prune=True)
    client.apply(text)
    exported = client.export()
    report = client.apply(exported, prune=True)
    assert {item.action for item in report.items} == {"unchanged"}
    assert client.export() == exported == text
