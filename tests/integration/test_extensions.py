"""Functions, types and operators of extensions that the operator trusts, and of no others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workbench import Workbench
from vitrina import sqlguard
from vitrina.errors import ConfigError, InvalidQuery
from vitrina.runner import requests as runner_requests
from vitrina.settings import load
from vitrina.sqlguard import SqlPolicy, extensions

# What the tests need of pg_trgm and citext, for servers that come without them.
TRIGRAMS = """
CREATE FUNCTION similarity(text, text) RETURNS real LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN lower($1) = lower($2) THEN 1.0 ELSE 0.4 END::real $$;
CREATE FUNCTION similarity_op(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS $$ SELECT lower($1) = lower($2) $$;
CREATE OPERATOR % (LEFTARG = text, RIGHTARG = text, FUNCTION = similarity_op);
"""
CASELESS = """
CREATE DOMAIN citext AS text;
"""
QUERY = "SELECT id, title, similarity(title, 'film 1') AS likeness FROM content.films WHERE title % 'film 1'"


@pytest.fixture
def bench(workbench: Workbench) -> Iterator[Workbench]:
    workbench.source(
        """
        CREATE TABLE content.films (id int PRIMARY KEY, title text);
        INSERT INTO content.films VALUES (1, 'Film 1'), (2, 'Something else');
        CREATE SCHEMA extras;
        GRANT USAGE ON SCHEMA extras TO PUBLIC
        """
    )
    with tempfile.TemporaryDirectory() as directory:
        install(workbench, Path(directory))
        workbench.settings = trusting(workbench, "pg_trgm,citext")
        yield workbench


def install(bench: Workbench, directory: Path) -> None:
    """The real ones where the server has them; else, on 18, small ones of our own."""
    known = bench.sql("SELECT name FROM pg_available_extensions WHERE name IN ('pg_trgm', 'citext')")
    if len(known) < 2:
        if bench.admin.info.server_version < 180_000:
            pytest.skip("this server has no pg_trgm, and cannot be given one")
        directory.chmod(0o755)
        (directory / "extension").mkdir(mode=0o755)
        for name, script in (("pg_trgm", TRIGRAMS), ("citext", CASELESS)):
            (directory / "extension" / f"{name}.control").write_text("default_version = '1.0'\nrelocatable = true\n")
            (directory / "extension" / f"{name}--1.0.sql").write_text(script)
        bench.sql(f"SET extension_control_path = '{directory}:$system'")
    bench.sql("CREATE EXTENSION pg_trgm SCHEMA extras; CREATE EXTENSION citext SCHEMA extras")


def trusting(bench: Workbench, names: str, **more: str):  # type: ignore[no-untyped-def]
    fields = bench.settings.model_dump() | {"trusted_extensions": names} | more
    return type(bench.settings)(**fields)


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
def test_what_trusted_extensions_have_is_found_on_every_route(bench: Workbench, route: str) -> None:
    bench.pipeline("films", QUERY, target_key=["id"], options={"route": route})
    run = bench.run("films")
    assert run["status"] == "SUCCESS", run["error_message"]
    assert bench.sql("SELECT id, likeness FROM analytics.films") == [{"id": 1, "likeness": 1.0}]


def test_previews_find_it_too(bench: Workbench) -> None:
    bench.pipeline("films", QUERY, target_key=["id"])
    request = {"payload": {}, "pipeline_id": bench.sql("SELECT id FROM etl.etl_pipelines")[0]["id"]}
    assert len(runner_requests.preview(request, bench.metastore, bench.settings)["rows"]) == 1


def test_types_of_extensions_keep_their_schema_outside_of_the_reader(bench: Workbench) -> None:
    bench.pipeline("films", "SELECT id, title::citext AS title FROM content.films", target_key=["id"])
    run = bench.run("films")
    assert run["status"] == "SUCCESS", run["error_message"]
    kept = "SELECT format_type(atttypid, -1) AS type FROM pg_attribute WHERE attrelid = 'analytics.films'::regclass"
    # A domain, as which the small one is made, is given as its base type.
    assert {"extras.citext", "text"} & {row["type"] for row in bench.sql(f"{kept} AND attname = 'title'")}


def test_a_schema_in_which_everybody_may_create_is_not_looked_into(bench: Workbench) -> None:
    bench.sql("GRANT CREATE ON SCHEMA extras TO PUBLIC")
    bench.pipeline("films", QUERY, target_key=["id"])
    run = bench.run("films")
    assert run["status"] == "FAILED"
    assert "does not exist" in run["error_message"]


@pytest.mark.parametrize(
    ("query", "setting"),
    [
        (QUERY, "VITRINA_TRUSTED_EXTENSIONS=pg_trgm"),
        ("SELECT 'a'::citext AS a", "VITRINA_TRUSTED_EXTENSIONS=citext"),
        ("SELECT title %> 'a' AS a FROM content.films", "VITRINA_TRUSTED_EXTENSIONS=pg_trgm"),
        ("SELECT st_x(place) AS x FROM content.films", "VITRINA_TRUSTED_EXTENSIONS=postgis"),
        ("SELECT e <=> '[1,2]' AS d FROM content.films", "VITRINA_TRUSTED_EXTENSIONS="),
        ("SELECT content.price(1) AS a", "VITRINA_ALLOWED_FUNCTIONS=content.price"),
        ("SELECT id FROM archive.films", "VITRINA_ALLOWED_SOURCE_SCHEMAS=archive"),
        ("SELECT oid FROM pg_catalog.pg_class", "no setting allows"),
        ("SELECT current_user AS u", "no setting allows it"),
    ],
)
def test_a_refusal_names_the_setting_that_would_allow_it(query: str, setting: str) -> None:
    with pytest.raises(InvalidQuery, match=setting):
        sqlguard.check(query, SqlPolicy(frozenset({"content"})))


@pytest.mark.parametrize(
    ("query", "functions", "trusted"),
    [
        ("SELECT public.st_x(p) AS x, public.st_distance(p, p) AS d FROM content.films", "public.st_*", ""),
        ("SELECT content.price(1) AS price", "content.*", ""),
        ("SELECT st_distance(p::geometry, p::geography) AS d FROM content.films WHERE p && p", "", "postgis"),
        ("SELECT e <=> '[1,2]'::vector(2) AS d FROM content.films", "", "vector"),
        ("SELECT h -> 'a' AS a, akeys(h) AS k, h ?& ARRAY['a'] AS b FROM content.films", "", "hstore"),
        (
            "SELECT subpath(p, 0, 1) AS s, p <@ 'a.b'::ltree AS b, p ~ 'a.*'::lquery AS c FROM content.films",
            "",
            "ltree",
        ),
        ("SELECT encode(digest(title, 'sha256'), 'hex') AS h FROM content.films", "", "pgcrypto"),
        ("SELECT levenshtein(title, 'x') AS l, unaccent(title) AS u FROM content.films", "", "fuzzystrmatch,unaccent"),
        ("SELECT uuid_generate_v5(uuid_ns_url(), title) AS id FROM content.films", "", "uuid-ossp"),
    ],
)
def test_the_operator_may_allow_functions_types_and_operators(query: str, functions: str, trusted: str) -> None:
    with pytest.raises(InvalidQuery):
        sqlguard.check(query, load({}, dotenv=None).sql_policy)
    allowed = load({"VITRINA_ALLOWED_FUNCTIONS": functions, "VITRINA_TRUSTED_EXTENSIONS": trusted}, dotenv=None)
    sqlguard.check(query, allowed.sql_policy)


def test_a_pattern_opens_no_function_of_the_server() -> None:
    policy = SqlPolicy(frozenset({"content"}), frozenset({"*", "pg_catalog.*", "pg_*"}))
    for query in ("SELECT pg_read_file('a')", "SELECT pg_catalog.pg_read_file('a')", "SELECT pg_sleep(1)"):
        with pytest.raises(InvalidQuery, match="queries may not call the function"):
            sqlguard.check(query, policy)


def test_settings_name_what_they_do_not_know() -> None:
    with pytest.raises(ConfigError, match=r"dblink is not an extension that Vitrina knows .*VITRINA_ALLOWED_FUNCTIONS"):
        load({"VITRINA_TRUSTED_EXTENSIONS": "dblink"}, dotenv=None)
    for wrong in ("films", "*.films", "pg_catalog.*", "etl.*"):
        with pytest.raises(ConfigError, match="VITRINA_ALLOWED_RELATIONS"):
            load({"VITRINA_ALLOWED_RELATIONS": wrong}, dotenv=None)


def test_known_extensions_are_as_the_server_has_them(bench: Workbench) -> None:
    """Where the server has the real ones."""
    for name in sorted(extensions.KNOWN.keys() - {"pg_trgm", "citext", "earthdistance"}):
        if bench.sql(f"SELECT 1 FROM pg_available_extensions WHERE name = '{name}'"):
            bench.sql(f'CREATE EXTENSION "{name}" SCHEMA extras')
            there = bench.sql(
                f"""
                SELECT DISTINCT p.proname AS name FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
                JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = '{name}'
                """
            )
            wanted = {one for one in extensions.KNOWN[name].functions if "*" not in one} - {"daitch_mokotoff"}
            assert wanted <= {row["name"] for row in there} | {"gen_random_uuid"}, name
