"""Connectors are found by entry point; one that cannot be used is left out, and says why."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from vitrina.definition import Definition, Options
from vitrina.errors import ConfigError, ForbiddenTarget, Invalid
from vitrina.observe import logs
from vitrina.ports import registry
from vitrina.ports.connector import Connector
from vitrina.ports.registry import Installed
from vitrina.services import policy
from vitrina.settings import Settings
from vitrina.targets import ConnectorTarget, TargetPolicy, is_allowed_target, parse_target


class LakeOptions(BaseModel):
    """Options of a made-up connector."""

    model_config = {"extra": "forbid", "strict": True}

    rows_per_file: int = Field(1_000, ge=1, description="Rows of a file, at most.")
    compression: str = "zstd"


def opened(_: Any) -> Any:
    raise AssertionError("nothing is opened here")


LAKE = Connector(
    name="lake", schemes=("lake",), prefix="lake", options=LakeOptions, open_source=opened, open_target=opened
)


@dataclass
class Distribution:
    """A package, as far as the registry looks at it."""

    name: str
    version: str = "1.0"


@dataclass
class Entry:
    """An entry point that gives what it is made with."""

    name: str
    gives: object
    dist: Any = field(default_factory=lambda: Distribution("vitrina-lake"))

    def load(self) -> object:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def own(connector: Connector) -> Entry:
    return Entry(connector.name, connector, Distribution("vitrina"))


@pytest.fixture
def with_lake(monkeypatch: pytest.MonkeyPatch) -> Installed:
    entries = [own(found) for found in registry.installed().connectors.values()]
    found = registry.collect([*entries, Entry("lake", LAKE)])
    monkeypatch.setattr(registry, "installed", lambda: found)
    return found


def test_vitrinas_own_are_connectors_like_any_other() -> None:
    found = registry.installed()
    assert found.refused == ()
    assert {"postgres", "python", "search"} <= found.connectors.keys()
    assert {each.package for each in found.connectors.values()} >= {"vitrina"}
    assert found.connectors["postgres"].is_source
    assert found.connectors["search"].is_target
    assert not found.connectors["search"].is_source


def test_a_package_adds_a_connector(with_lake: Installed) -> None:
    lake = with_lake.connectors["lake"]
    assert (lake.package, lake.version) == ("vitrina-lake", "1.0")
    assert registry.of_url("lake://bucket/marts") is lake
    described = lake.describe()
    assert described["prefix"] == "lake"
    assert described["options"]["properties"]["rows_per_file"]["minimum"] == 1


class NoSchema(BaseModel):
    """Has no JSON Schema: a function is none."""

    made_by: Callable[[], int] = int


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (ImportError("No module named 'boto3'"), "ImportError: No module named 'boto3'"),
        ("text", "its entry point is str, not a vitrina.ports.connector.Connector"),
        (replace(LAKE, name="postgres"), "its name 'postgres' is that of a connector of the package vitrina"),
        (replace(LAKE, schemes=("postgresql",)), "its scheme 'postgresql' belongs to the connector 'postgres'"),
        (replace(LAKE, schemes=("python",)), "its scheme 'python' is reserved"),
        (replace(LAKE, schemes=("https",)), "its scheme 'https' is reserved"),
        (replace(LAKE, prefix="es"), "its prefix 'es' belongs to the connector 'search'"),
        (replace(LAKE, name="Lake"), "its name 'Lake' is not lower-case letters"),
        (replace(LAKE, open_source=None, open_target=None), "it opens neither a source nor a target nor an engine"),
        (replace(LAKE, prefix=None), "it opens targets but names no prefix for them"),
        (replace(LAKE, options=NoSchema), "PydanticInvalidForJsonSchema"),
        (replace(LAKE, target_name="("), "PatternError" if hasattr(__import__("re"), "PatternError") else "error"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_the_reason(offered: object, reason: str) -> None:
    entries = [own(found) for found in registry.installed().connectors.values()]
    found = registry.collect([Entry("offered", offered), *entries])
    assert found.connectors.keys() == registry.installed().connectors.keys()
    (refused,) = found.refused
    assert (refused.entry, refused.package) == ("offered", "vitrina-lake")
    assert reason in refused.reason
    assert str(refused).startswith("the connector 'offered' of the package vitrina-lake is left out: ")


def test_the_second_of_two_packages_is_left_out() -> None:
    found = registry.collect([Entry("b", LAKE, Distribution("b-lake")), Entry("a", LAKE, Distribution("a-lake"))])
    assert found.connectors["lake"].package == "a-lake"
    assert [refused.package for refused in found.refused] == ["b-lake"]


def test_a_connector_that_is_not_installed_is_named(with_lake: Installed) -> None:
    with pytest.raises(
        ConfigError, match=r"no connector 'delta' is installed here \(installed: clickhouse, files, iceberg, lake"
    ):
        registry.get("delta")


def test_targets_of_a_connector_are_on_the_allow_list(with_lake: Installed) -> None:
    allowed = TargetPolicy.of(["lake:marts/*", "analytics.*", "*"])
    assert parse_target("lake:marts/films", allowed) == ConnectorTarget("lake", "lake", "marts/films")
    assert str(parse_target("lake:marts/films", allowed)) == "lake:marts/films"
    for forbidden in ("lake:other/films", "lake:marts/../etc", "lake:", "delta:marts/films", "lake:marts/a b"):
        assert not is_allowed_target(forbidden, allowed), forbidden
    # `*` alone never crosses into another system.
    assert not is_allowed_target("lake:films", TargetPolicy.of(["*"]))
    with pytest.raises(
        ForbiddenTarget,
        match="no connector with the prefix 'delta' is installed here, only clickhouse, es, files, iceberg, lake",
    ):
        parse_target("delta:films", allowed)


def define(**fields: Any) -> Definition:
    return policy.parse({"name": "films", "source_query": "SELECT 1", "target_table": "lake:films", **fields})


def test_options_of_a_connector_are_validated_by_its_model(with_lake: Installed) -> None:
    definition = define(options={"lake": {"rows_per_file": 5}, "allow_shrink": True})
    options = definition.options.of("lake")
    assert isinstance(options, LakeOptions)
    assert (options.rows_per_file, options.compression) == (5, "zstd")
    # What is stored is what its author wrote.
    assert definition.options.model_dump(exclude_defaults=True) == {"lake": {"rows_per_file": 5}, "allow_shrink": True}
    assert define().options.of("lake") == LakeOptions()
    assert define().options.of("search") is None


def test_all_that_is_wrong_with_options_is_said_at_once(with_lake: Installed) -> None:
    with pytest.raises(Invalid) as caught:
        define(options={"lake": {"rows_per_file": 0, "colour": "red"}, "allow_shrink": "yes", "delta": {}})
    assert {error.path: error.code for error in caught.value.fields} == {
        "options.allow_shrink": "invalid",
        "options.delta": "unknown_field",
        "options.lake.rows_per_file": "invalid",
        "options.lake.colour": "unknown_field",
    }


def test_without_the_connector_its_options_are_unknown() -> None:
    with pytest.raises(Invalid, match=r"options\.lake is not a field that can be set here"):
        policy.parse({"name": "f", "source_query": "SELECT 1", "target_table": "a.b", "options": {"lake": {}}})


def test_the_schema_of_options_has_those_of_connectors(with_lake: Installed) -> None:
    schema = Options.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["lake"]["properties"]["compression"]["default"] == "zstd"
    within = Definition.model_json_schema()["$defs"]["Options"]
    assert "lake" in within["properties"]


def test_the_schema_is_as_before_without_other_connectors() -> None:
    assert "lake" not in Options.model_json_schema()["properties"]
    assert Options.model_json_schema()["additionalProperties"] is False


def test_a_source_is_of_an_installed_connector(with_lake: Installed) -> None:
    assert define(source_type="lake", source_query=None, source_table="raw/films").source_connector == "lake"
    expected = "source_type 'search' is not a connector that opens sources here; available: files, lake, postgres"
    with pytest.raises(Invalid, match=expected):
        define(source_type="search")
    with pytest.raises(Invalid, match="source_type 'python' is not a connector"):
        define(source_type="python")


def test_a_connection_must_be_one_of_the_connector_that_uses_it(with_lake: Installed) -> None:
    settings = Settings.model_validate(
        {"connections": {"bucket": "lake://bucket"}, "allowed_targets": "lake:*,es:*,analytics.*"}
    )

    def problems(**fields: Any) -> dict[str, str]:
        fields = {"source_query": "SELECT id FROM content.films", **fields}
        return {error.path: error.message for error in policy.problems(define(**fields), settings)}

    assert problems(options={"target_connection": "bucket"}) == {}
    assert "needs options.target_connection" in problems()["options.target_connection"]
    assert problems(target_table="analytics.films", options={"target_connection": "bucket"}) == {
        "options.target_connection": "connection 'bucket' belongs to connector lake,"
        " but options.target_connection needs a connection of postgres"
    }
    assert (
        "source_connection needs a connection of postgres"
        in (problems(source_connection="bucket", target_table="analytics.films")["source_connection"])
    )


def test_a_connection_that_no_connector_opens_is_an_error_where_it_is_used() -> None:
    settings = Settings.model_validate({"connections": {"old": "mysql://user:secret@host/shop"}})
    assert settings.connector_of("old") is None


def test_secrets_in_urls_of_a_connector_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "lake://user:hidden@bucket/marts?sas=c0ffee&region=eu"
    secret = replace(LAKE, secrets=frozenset({"sas"}))
    monkeypatch.setattr(registry, "installed", lambda: Installed({"lake": secret}))
    settings = Settings.model_validate({"connections": {"bucket": url}})
    masked = logs.Redactor(logs.secrets_of(settings))
    assert masked("opened lake with c0ffee in eu as hidden") == f"opened lake with {logs.MASK} in eu as {logs.MASK}"


def test_loading_the_descriptions_loads_no_driver() -> None:
    """Every process does, the API too."""
    program = "from vitrina.ports import registry; registry.installed(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.split()}
    assert not loaded & {"adbc_driver_manager", "elastic_transport", "psycopg", "pyarrow"}
