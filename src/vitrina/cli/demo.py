"""`vitrina demo`: load a demo cinema, fill its marts through a real API and runner, and show the result."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrina.cli import demo_live, local, processes, stack
from vitrina.cli import search as search_servers
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Format, Output, as_plain, show_data, show_table
from vitrina.cli.progress import Watcher, watching
from vitrina.cli.runs import show_runs, succeeded
from vitrina.errors import CannotConnect, ConfigError

if TYPE_CHECKING:
    from vitrina.client import Client
    from vitrina.schemas import PipelineStatus, Run
    from vitrina.settings import Settings

ANY_PORT = 0
ROWS_SHOWN = 5
RATINGS_A_FILM = 50
SMALLEST_GENERATED = 1
COUNTED = {"films": "content.film_work", "people": "content.person", "ratings": "ugc.ratings", "views": "ugc.views"}
SEED_PIPELINES = ("film_dim_full", "film_rating_agg_full")

# A whole group is read again when it has a row newer than the checkpoint.
INCREMENTAL_PIPELINES: tuple[dict[str, Any], ...] = (
    {
        "name": "daily_views",
        "description": "Views, viewers and hours watched of every day.",
        "source_query": """\
SELECT
    CAST(v.viewed_at AT TIME ZONE 'UTC' AS date) AS day,
    count(*) AS views,
    count(DISTINCT v.user_id) AS viewers,
    CAST(sum(v.seconds) / 3600.0 AS numeric(12, 2)) AS hours_watched,
    max(v.viewed_at) AS last_viewed_at
FROM ugc.views v
GROUP BY 1""",
        "target_table": "analytics.daily_views",
        "target_key": ["day"],
        "mode": "incremental",
        "incremental_key": "last_viewed_at",
        "incremental_id_key": "day",
    },
    {
        "name": "user_activity",
        "description": "What every user has rated and watched, and when they were last seen.",
        "source_query": """\
SELECT
    a.user_id,
    count(a.rating) AS ratings,
    CAST(avg(a.rating) AS numeric(4, 2)) AS avg_rating,
    count(a.seconds) AS views,
    CAST(coalesce(sum(a.seconds), 0) / 3600.0 AS numeric(12, 2)) AS hours_watched,
    max(a.at) AS last_active_at
FROM (
    SELECT r.user_id, r.rating, CAST(NULL AS integer) AS seconds, r.modified AS at FROM ugc.ratings r
    UNION ALL
    SELECT v.user_id, NULL, v.seconds, v.viewed_at FROM ugc.views v
) a
GROUP BY a.user_id""",
        "target_table": "analytics.user_activity",
        "target_key": ["user_id"],
        "mode": "incremental",
        "incremental_key": "last_active_at",
        "incremental_id_key": "user_id",
    },
)

# Three services in one mart: accounts and logins from auth, watching from ugc, genres from content. Days are counted up
# to the latest event in the cinema, so that a rerun finds nothing to change.
SEGMENT_PIPELINES: tuple[dict[str, Any], ...] = (
    {
        "name": "audience_segments",
        "description": "Every account with what it watches, how often it logs in, and the segment that follows.",
        "source_query": """\
SELECT
    u.id AS user_id,
    u.country,
    u.subscription,
    coalesce(s.logins, 0) AS logins,
    coalesce(v.views, 0) AS views,
    coalesce(v.hours_watched, 0) AS hours_watched,
    v.favourite_genre,
    CASE
        WHEN v.views IS NULL THEN 'never watched'
        WHEN v.last_viewed_at < latest.at - INTERVAL '90 days' THEN 'lapsed'
        WHEN v.views >= 40 THEN 'devoted'
        ELSE 'regular'
    END AS segment
FROM auth.users u
CROSS JOIN (SELECT max(viewed_at) AS at FROM ugc.views) latest
LEFT JOIN (SELECT user_id, count(*) AS logins FROM auth.sessions GROUP BY user_id) s ON s.user_id = u.id
LEFT JOIN (
    SELECT
        w.user_id,
        count(DISTINCT w.id) AS views,
        CAST(sum(w.seconds) / 3600.0 AS numeric(12, 2)) AS hours_watched,
        max(w.viewed_at) AS last_viewed_at,
        mode() WITHIN GROUP (ORDER BY w.genre) AS favourite_genre
    FROM (
        SELECT view.id, view.user_id, view.seconds, view.viewed_at, min(genre.name) AS genre
        FROM ugc.views view
        LEFT JOIN content.genre_film_work gfw ON gfw.film_work_id = view.film_id
        LEFT JOIN content.genre ON genre.id = gfw.genre_id
        GROUP BY view.id, view.user_id, view.seconds, view.viewed_at
    ) w
    GROUP BY w.user_id
) v ON v.user_id = u.id""",
        "target_table": "analytics.audience_segments",
        "target_key": ["user_id"],
    },
)

# A task plan: the query, then two Python steps, then the mart.
STEP_PIPELINES: tuple[dict[str, Any], ...] = (
    {
        "name": "film_cards",
        "description": "What a film's card shows: tidied by one Python step, its votes looked up by another.",
        "target_table": "analytics.film_cards",
        "target_key": ["film_id"],
        "tasks": [
            {
                "order_index": 0,
                "task_type": "SQL",
                "body": """\
SELECT fw.id AS film_id, fw.title, fw.rating, g.genres
FROM content.film_work fw
LEFT JOIN (
    SELECT gfw.film_work_id, array_agg(genre.name) AS genres
    FROM content.genre_film_work gfw
    JOIN content.genre ON genre.id = gfw.genre_id
    GROUP BY gfw.film_work_id
) g ON g.film_work_id = fw.id""",
            },
            {"order_index": 1, "task_type": "PYTHON", "body": "demo_film_dim"},
            {
                "order_index": 2,
                "task_type": "PYTHON",
                "body": "lookup",
                "params": {
                    "query": "SELECT r.film_id, count(*) AS votes FROM ugc.ratings r GROUP BY r.film_id",
                    "on": {"film_id": "film_id"},
                },
            },
        ],
    },
)

OTHER_PIPELINES = (*INCREMENTAL_PIPELINES, *SEGMENT_PIPELINES, *STEP_PIPELINES)

# The same queries as the marts of the seeds, into search indexes; films pass a Python step on the way.
SEARCH_PIPELINES: dict[str, tuple[str, str, list[str]]] = {
    "film_dim_search": ("film_dim_full", "es:film_dim", ["demo_film_dim"]),
    "film_rating_agg_search": ("film_rating_agg_full", "es:film_rating_agg", []),
}
SEARCHED_FOR = "star wars"

# The same films in a ClickHouse that runs in the runner's process.
CLICKHOUSE_PIPELINE: dict[str, Any] = {
    "name": "film_dim_clickhouse",
    "description": "Films in ClickHouse.",
    "source_query": """\
SELECT
    fw.id AS film_id, fw.title, CAST(fw.rating AS numeric(4, 2)) AS rating, fw.type, fw.creation_date,
    coalesce(g.genres, ARRAY[]::text[]) AS genres
FROM content.film_work fw
LEFT JOIN (
    SELECT gfw.film_work_id, array_agg(genre.name ORDER BY genre.name) AS genres
    FROM content.genre_film_work gfw
    JOIN content.genre ON genre.id = gfw.genre_id
    GROUP BY gfw.film_work_id
) g ON g.film_work_id = fw.id""",
    "target_table": "clickhouse:film_dim",
    "target_key": ["film_id"],
    "options": {"target_connection": "clickhouse"},
}
CLICKHOUSE_DIRECTORY = "clickhouse"

MARTS = {
    "analytics.film_dim": "SELECT title, rating, type, creation_date, genres, directors, actors"
    " FROM analytics.film_dim ORDER BY title, film_id LIMIT %s",
    "analytics.film_rating_agg": "SELECT film_id, avg_rating, rating_count, updated_at"
    " FROM analytics.film_rating_agg ORDER BY rating_count DESC, film_id LIMIT %s",
    "analytics.audience_segments": "SELECT segment, count(*) AS accounts, sum(views) AS views,"
    " round(avg(logins), 1) AS logins, mode() WITHIN GROUP (ORDER BY favourite_genre) AS favourite_genre"
    " FROM analytics.audience_segments GROUP BY segment ORDER BY accounts DESC, segment LIMIT %s",
    "analytics.film_cards": "SELECT title, rating, genres, votes FROM analytics.film_cards"
    " ORDER BY votes DESC NULLS LAST, title LIMIT %s",
}


def demo(
    films: Annotated[
        int | None, typer.Option(help="Generate this many films instead of the small cinema.", min=1)
    ] = None,
    ratings: Annotated[int | None, typer.Option(help="Generate this many ratings. [default: 50 a film]", min=0)] = None,
    seed: Annotated[int, typer.Option(help="The same seed generates the same cinema.")] = 1,
    *,
    search: Annotated[
        bool | None,
        typer.Option(
            "--search/--no-search",
            help="Start a search server and fill its indexes too."
            " [default: if ELASTICSEARCH_URL is not set, and nothing has to be fetched for it]",
        ),
    ] = None,
    clickhouse: Annotated[
        bool, typer.Option("--clickhouse", help="Fill a table of ClickHouse too, in the runner's process (needs chdb).")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Create a demo cinema, run its pipelines, show the marts."""
    with processes.ending_like_ctrl_c():
        settings = _with_cinema(local.load_settings(auth="off"))
        with stack.migrated_database(settings) as (found, _):
            _load_cinema(found, films, ratings, seed)
            ended, hits = _run_pipelines(found, search, clickhouse=_clickhouse() if clickhouse else None)
            marts = _first_rows(found) | (_clickhouse_rows() if clickhouse else {})
            marts |= {f'search for "{SEARCHED_FOR}"': hits} if hits is not None else {}
    _show(ended, marts, output)
    if not all(map(succeeded, ended)):
        raise typer.Exit(ExitCode.FAILED)
    program = _as_typed()
    if hits is None:
        local.say(f"search: `{program} demo --search` fills Elasticsearch indexes too, or set ELASTICSEARCH_URL")
    local.say(f"next: `{program} dev` serves this cinema with the console and the API documentation")


def _as_typed() -> str:
    """Return a name by which the shell finds this program: its path if it is not on PATH, as in a clone."""
    typed = Path(sys.argv[0])
    return "vitrina" if shutil.which("vitrina") or typed.name != "vitrina" else shlex.quote(str(typed))


def _with_cinema(settings: "Settings") -> "Settings":
    """Allow the demo's pipelines to read their sources, unless the user has set the schemas to read."""
    from vitrina.embedded import cinema

    if "allowed_source_schemas" in settings.model_fields_set:
        return settings
    if settings.database_url is not None:
        local.say(f"sources: to continue with this cinema later, set VITRINA_ALLOWED_SOURCE_SCHEMAS={cinema.SCHEMAS}")
    return settings.model_copy(update={"allowed_source_schemas": cinema.SCHEMAS})


def _load_cinema(settings: "Settings", films: int | None, ratings: int | None, seed: int) -> None:
    """Load the cinema with the administrator's login: the application itself may not create source schemas."""
    from vitrina.embedded import cinema
    from vitrina.store import database

    login = settings.admin_url or settings.database_url
    if login is None:
        raise ConfigError("the demo cinema needs a database: set VITRINA_DATABASE_URL")
    with (
        database.connect(login.get_secret_value(), "vitrina:demo") as connection,
        database.translated("loading the demo cinema"),
    ):
        if films is None and ratings is None:
            cinema.load(connection)
        else:
            wanted = films or SMALLEST_GENERATED
            cinema.generate(connection, wanted, RATINGS_A_FILM * wanted if ratings is None else ratings, seed)
        rows = cinema.counts(connection)
    local.say(f"cinema: {', '.join(f'{rows[table]:,} {name}' for name, table in COUNTED.items())}")


def _run_pipelines(
    settings: "Settings", search: bool | None, *, clickhouse: str | None = None
) -> "tuple[list[Run], list[dict[str, Any]] | None]":
    """Run the demo's pipelines. With `search`, start a search server.

    With None, start one only if nothing has to be downloaded, and continue without it if it does not start.
    """
    wanted = settings.elasticsearch_url is None and search_servers.is_at_hand() if search is None else search
    try:
        return _run_beside(settings, clickhouse, with_search=wanted, is_search_vital=search is not None)
    except search_servers.NotStarted as exc:
        local.say(f"search: left out, since the server does not start: {exc.message}")
        return _run_beside(settings, clickhouse)


def _clickhouse() -> str:
    """Return the directory of the engine's tables. Raise `ConfigError` if the engine is not installed."""
    from importlib.util import find_spec

    if not (find_spec("chdb") and find_spec("clickhouse_connect")):
        raise ConfigError("--clickhouse needs the engine and its client: pip install 'vitrina[clickhouse]' chdb")
    return f"clickhouse+chdb://{_clickhouse_directory()}"


def _clickhouse_directory() -> Path:
    return (local.HOME / CLICKHOUSE_DIRECTORY).resolve()


def _clickhouse_rows() -> dict[str, list[dict[str, Any]]]:
    """Read rows after the runner has ended: the engine's directory belongs to one process at a time."""
    import clickhouse_connect

    client = clickhouse_connect.get_client(interface="chdb", path=str(_clickhouse_directory()))
    try:
        names = ("title", "rating", "type", "creation_date", "genres")
        columns = ", ".join(names)
        statement = f"SELECT {columns} FROM film_dim ORDER BY title, film_id LIMIT {ROWS_SHOWN}"  # noqa: S608 - ours alone
        rows = client.query(statement).result_rows
        return {"clickhouse:film_dim": [dict(zip(names, row, strict=True)) for row in rows]}
    finally:
        client.close()


def _run_beside(
    settings: "Settings", clickhouse: str | None = None, **search: bool
) -> "tuple[list[Run], list[dict[str, Any]] | None]":
    from vitrina.client import Client

    with (
        stack.running(settings, ANY_PORT, _keep_quiet, more=_of_clickhouse(settings, clickhouse), **search) as running,
        Client(running.url) as client,
    ):
        local.say(f"API and runner: up on {running.url}")
        configured = settings.elasticsearch_url
        search_url = running.search_url or (configured.get_secret_value() if configured else None)
        try:
            others = [CLICKHOUSE_PIPELINE] if clickhouse else []
            _create_missing(client, others, searchable=search_url is not None)
            ended = _run_all(client, running, others, searchable=search_url is not None)
            if demo_live.can_follow(settings):
                demo_live.show(client, running, settings)
            # Another runner of the same platform, such as that of `vitrina dev`, may have no search server.
            filled = all(map(succeeded, ended))
            return ended, _search(settings, search_url) if search_url and filled else None
        except CannotConnect:
            # If the process has ended, its last lines contain the reason.
            running.children.raise_if_ended()
            raise


def _of_clickhouse(settings: "Settings", url: str | None) -> dict[str, str]:
    if url is None:
        return {}
    return {"VITRINA_CONN_CLICKHOUSE": url, "VITRINA_ALLOWED_TARGETS": f"{settings.allowed_targets},clickhouse:*"}


def _keep_quiet(name: str, line: str) -> None:
    """Hide the logs of API and runner unless something goes wrong."""


def _create_missing(client: "Client", others: list[dict[str, Any]], *, searchable: bool) -> None:
    existing = {pipeline.name: pipeline for pipeline in client.list_pipelines()}
    wanted = [*OTHER_PIPELINES, *others]
    for name, (model, target, steps) in SEARCH_PIPELINES.items() if searchable else ():
        definition = {"name": name, "target_table": target, "target_key": ["film_id"]}
        wanted.append(definition | _query_and_steps(existing[model].source_query, steps))
    for definition in wanted:
        if definition["name"] not in existing:
            client.create_pipeline(definition)
            mode = definition.get("mode", "full")
            local.say(f"pipeline {definition['name']}: created, {mode}, into {definition['target_table']}")


def _query_and_steps(query: str | None, steps: list[str]) -> dict[str, Any]:
    if not steps:
        return {"source_query": query}
    named = [("SQL", query), *(("PYTHON", step) for step in steps)]
    return {
        "tasks": [{"order_index": place, "task_type": kind, "body": body} for place, (kind, body) in enumerate(named)]
    }


def _run_all(client: "Client", running: stack.Stack, others: list[dict[str, Any]], *, searchable: bool) -> "list[Run]":
    from concurrent.futures import ThreadPoolExecutor

    names = [*SEED_PIPELINES, *(definition["name"] for definition in (*OTHER_PIPELINES, *others))]
    names += SEARCH_PIPELINES if searchable else ()
    with watching() as watcher, ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: _run_one(client, running, watcher, name), names))


def _run_one(client: "Client", running: stack.Stack, watcher: Watcher, name: str) -> "Run":
    def look(seen: "PipelineStatus") -> None:
        running.children.raise_if_ended()
        watcher.see(seen)

    accepted = client.run(name)
    ended = client.wait_for_run(name, requested_at=accepted.run_requested_at, on_progress=look, poll_seconds=0.2)
    watcher.finish(ended)
    return ended


def _search(settings: "Settings", url: str) -> list[dict[str, Any]]:
    """Search as a user of the cinema's search box would."""
    from pydantic import SecretStr

    from vitrina.ports import registry

    opened = registry.get(registry.SEARCH).open_client
    if opened is None:
        return []
    client = opened(settings.model_copy(update={"elasticsearch_url": SecretStr(url)}))
    try:
        query = {"size": ROWS_SHOWN, "query": {"match": {"title": {"query": SEARCHED_FOR, "operator": "and"}}}}
        hits = client.search("film_dim", query)["hits"]["hits"]
    finally:
        client.close()
    return [
        {"score": round(hit["_score"], 2), **{name: hit["_source"][name] for name in ("title", "rating", "genres")}}
        for hit in hits
    ]


def _first_rows(settings: "Settings") -> dict[str, list[dict[str, Any]]]:
    from vitrina.store import database

    with (
        database.connect(settings.require_database_url(), "vitrina:demo") as connection,
        database.translated("looking at the marts"),
    ):
        return {mart: connection.execute(query.encode(), [ROWS_SHOWN]).fetchall() for mart, query in MARTS.items()}


def _show(ended: "list[Run]", marts: dict[str, list[dict[str, Any]]], output: Format) -> None:
    if output is not Format.TABLE:
        show_data({"runs": as_plain(ended), "marts": marts}, output)
        return
    show_runs(ended, title="Runs")
    for mart, rows in marts.items():
        print()
        show_table([list(row.values()) for row in rows], list(rows[0]) if rows else [], title=mart, are_data=True)
