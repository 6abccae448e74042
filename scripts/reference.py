"""Write the pages of docs/reference that come from the code: `make reference`. A test compares them with the code."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import SecretStr

from vitrina import errors
from vitrina.settings import Settings

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"


def pages() -> dict[str, str]:
    """File name to text."""
    return {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "definition.md": definition_page(),
        "errors.md": errors_page(),
        "exit-codes.md": exit_codes_page(),
        "metrics.md": metrics_page(),
        "settings.md": settings_page(),
    }


# --- the API -------------------------------------------------------------------------------------------------------

API_HEAD = """\
# API

Every request, as the OpenAPI document has it; a running installation shows it at `/docs` and `/openapi.json`. How to
use it is told in [the guide to the API](../API.md). The paths under `/api/v1/pipelines` also answer without the
prefix.

Requests send `Authorization: Bearer <token>`. Errors are problem documents with a stable `code`: see
[errors](errors.md).
"""
TAGS = {
    "pipelines": "Pipelines",
    "verbs": "Actions on a pipeline",
    "reports": "Status, runs, logs",
    "files": "Pipelines as files",
    "installation": "The installation",
    "overview": "For the console",
    "events": "Events",
    "system": "For monitoring, without a token",
}


def api_page() -> str:
    document = api_document()
    sections: dict[str, list[str]] = {tag: [] for tag in TAGS}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sections[operation["tags"][0]].append(_operation(path, method, operation))
    parts = [API_HEAD]
    for tag, title in TAGS.items():
        parts += [f"## {title}\n", *sections[tag]]
    return "\n".join(parts)


def api_document() -> dict[str, Any]:
    from vitrina.api.app import create_app

    document: dict[str, Any] = create_app(
        Settings(database_url=SecretStr("postgresql://vitrina_app@localhost/vitrina"))
    ).openapi()
    return document


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [f"### {method.upper()} {path}", ""]
    if operation.get("description"):
        lines += [" ".join(operation["description"].split()), ""]
    found = [
        f"| `{parameter['name']}` | {parameter['in']} | {_kind(parameter['schema'])} | {_words(parameter)} |"
        for parameter in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        found.append(f"| body | JSON | {_kind(body)} | |")
    if found:
        lines += ["| given | in | type | |", "|---|---|---|---|", *found, ""]
    lines += [f"Answers: {', '.join(map(_answer, operation['responses'].items()))}.", ""]
    return "\n".join(lines)


def _words(parameter: dict[str, Any]) -> str:
    said = " ".join(str(parameter.get("description") or parameter["schema"].get("description") or "").split())
    return said.replace("|", r"\|")


def _answer(item: tuple[str, dict[str, Any]]) -> str:
    status, response = item
    schemas = [content.get("schema", {}) for content in response.get("content", {}).values()]
    shape = _kind(schemas[0]) if schemas and schemas[0] else ""
    return f"{status} {shape}" if shape and int(status) < 400 else status


def _kind(schema: dict[str, Any]) -> str:
    """Describe the type of a value."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        kinds = [_kind(kind) for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {})) or 'values'}"
    kind = schema.get("type", "")
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


# --- the command line ----------------------------------------------------------------------------------------------

CLI_HEAD = """\
# Command line

Standard output is data (`-o table|json|yaml`), standard error is for people. `VITRINA_API_URL` and `VITRINA_TOKEN`
say where the API is and who asks; without the first, commands ask the `vitrina dev` of their directory. How a
command ends: [exit codes](exit-codes.md).
"""


def cli_page() -> str:
    from vitrina.cli.app import make_app

    group = typer.main.get_command(make_app())
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    headings: dict[str, list[str]] = {}
    for name, command in commands.items():
        if not command.hidden:
            headings.setdefault(command.rich_help_panel, []).extend(_command(f"vitrina {name}", command))
    return "\n".join([CLI_HEAD, *(f"## {heading}\n\n" + "\n".join(parts) for heading, parts in headings.items())])


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([name, *(_usage(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"### {name}", "", _paragraphs(command.help or ""), "", f"`{usage}`", ""]
    if options:
        lines += ["| option | | |", "|---|---|---|", *map(_option, options), ""]
    yield "\n".join(lines)
    for below, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _command(f"{name} {below}", inner)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _usage(argument: Any) -> str:
    shown = (argument.metavar or argument.name).strip("{}[]").upper()
    shown = f"{shown}..." if argument.nargs == -1 else shown
    return shown if argument.required else f"[{shown}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    default = option.default
    shown = "required" if option.required else ""
    if default not in (None, False, [], ()) and not callable(default):
        shown = f"default `{getattr(default, 'value', default)}`"
    return f"| {names} | {shown} | {' '.join((option.help or '').split())} |"


# --- definitions and settings --------------------------------------------------------------------------------------

DEFINITION_HEAD = """\
# Definition of a pipeline

The fields of `POST /pipelines`, of `vitrina pipelines create -f`, and of `spec` in a file for `vitrina apply -f`
(where `name` stands in `metadata`). Unknown fields are refused. `GET /api/v1/schema/pipeline.json` gives a JSON
Schema for editors.
"""


def definition_page() -> str:
    from vitrina.definition import LOCKED_WHILE_RUNNING, Definition, Options, ReconcileSchedule, RunAfter, Task
    from vitrina.mart_options import Deletes, Grant, History, Index, Partitions, TableOptions

    locked = ", ".join(f"`{name}`" for name in Definition.model_fields if name in LOCKED_WHILE_RUNNING)
    return "\n".join([
        DEFINITION_HEAD,
        "## Fields\n",
        *_fields(Definition.model_json_schema()),
        "",
        f"During a run these fields are locked (409): {locked}.",
        "",
        "## tasks\n",
        *_fields(Task.model_json_schema()),
        "",
        "## run_after\n",
        "A name, or:\n",
        *_fields(RunAfter.model_json_schema()),
        "",
        "[Run a pipeline after others](../how-to/run-after.md) describes when it runs.",
        "",
        "## checks\n",
        "[Checks](../how-to/checks.md) describes when each kind is evaluated and what happens to its rows.\n",
        *_checks(),
        "## options\n",
        *_fields(Options.model_json_schema()),
        "",
        "### options.reconcile\n",
        *_fields(ReconcileSchedule.model_json_schema()),
        "",
        "### options.deletes\n",
        "[Rows that are deleted in the source](../how-to/deletes.md) describes how they are found.\n",
        *_fields(Deletes.model_json_schema()),
        "",
        "### options.history\n",
        "For tables in Postgres. [Keep a history](../how-to/history.md) describes the guarantees.\n",
        *_fields(History.model_json_schema()),
        "",
        "### options.table\n",
        "For tables in Postgres, when a run creates them. Warnings of the plan list what an existing table lacks.\n",
        *_fields(TableOptions.model_json_schema()),
        "",
        "`partition_by`:\n",
        *_fields(Partitions.model_json_schema()),
        "",
        "Each of `indexes`:\n",
        *_fields(Index.model_json_schema()),
        "",
        "Each of `grants`:\n",
        *_fields(Grant.model_json_schema()),
        "",
    ])  # fmt: skip


def _checks() -> Iterator[str]:
    from vitrina.data_checks import KINDS

    for kind in KINDS:
        schema = kind.model_json_schema()
        yield f"`{schema['properties']['kind']['const']}`: {schema['description'].splitlines()[0]}\n"
        fields = {name: field for name, field in schema["properties"].items() if name != "kind"}
        yield from _fields(schema | {"properties": fields})
        yield ""


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    yield from ("| field | type | default | |", "|---|---|---|---|")
    for name, field in schema["properties"].items():
        required = name in schema.get("required", [])
        default = "required" if required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        words = field.get("description") or ""
        yield f"| `{name}` | {_kind(field)}{_limits(field)} | {default} | {words} |"


def _limits(field: dict[str, Any]) -> str:
    found = [
        part for part in [field, *field.get("anyOf", [])] if {"minimum", "maximum", "exclusiveMinimum"} & set(part)
    ]
    if not found:
        return ""
    low = found[0].get("minimum", found[0].get("exclusiveMinimum"))
    sign = "≥" if "minimum" in found[0] else ">"
    high = f", ≤ {found[0]['maximum']:,}" if "maximum" in found[0] else ""
    return f" {sign} {low:,}{high}" if low is not None else high


SETTINGS_HEAD = """\
# Settings

Environment variables, or lines of a file `.env` in the working directory. Every variable may also be given as
`<NAME>_FILE=/path`, a file that holds the value. In either form, the environment wins over `.env`; in the same place,
`<NAME>` wins over `<NAME>_FILE`. A wrong value stops a process at its start, by name. `.env.sample` is the same list,
ready to be copied.

`VITRINA_CONN_<NAME>` adds a source database under the name that pipelines give in `source_connection`.
`VITRINA_CONN_<NAME>_MAX_CONNECTIONS` and `VITRINA_CONN_<NAME>_STATEMENT_TIMEOUT_SECONDS` are
[its own limits](../how-to/other-source.md#limit-it); no connection's name may end like that, or in `_FILE`.
"""


def settings_page() -> str:
    lines = [SETTINGS_HEAD, "| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        if name in ("connections", "connection_limits", "shut_connections"):
            continue
        variable = name.upper() if name.startswith("elasticsearch") else f"VITRINA_{name.upper()}"
        default = "" if field.default in (None, "") else f"`{_plain(field.default)}`"
        words = f"{field.description} *Secret.*" if "SecretStr" in str(field.annotation) else str(field.description)
        lines.append(f"| `{variable}` | {default} | {words} |")
    return "\n".join([*lines, ""])


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_plain(part) for part in value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# --- metrics -------------------------------------------------------------------------------------------------------

METRICS_HEAD = """\
# Metrics

`/metrics` of the API, and of each runner that has `VITRINA_METRICS_PORT`, in Prometheus's text format. What to ask
them, and the alerts and the dashboard that do, is told in [watch over an installation](../how-to/monitor.md). Labels
are few: never a run id.
"""


def metrics_page() -> str:
    from vitrina.observe.prometheus import Instruments

    own = [(f"{name}_total" if kind == "counter" else name, kind, labels, words)
           for name, kind, labels, words in _collected(Instruments().registry)]  # fmt: skip
    return "\n".join([
        METRICS_HEAD,
        "## Metrics of one runner\n",
        *_metric_rows(own),
        "",
        "## Metrics of the metastore, the same from every process\n",
        *_metric_rows(sorted(_of_metastore())),
        "",
        "## Of the API\n",
        *_metric_rows([("vitrina_http_request_duration_seconds", "histogram", "`method`, `route`, `status`",
                        "Time to answer a request.")]),
        "",
    ])  # fmt: skip


def _collected(registry: Any) -> Iterator[tuple[str, str, str, str]]:
    for collector in dict.fromkeys(registry._names_to_collectors.values()):
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        for family in collector.describe():
            yield family.name, family.type, labels, family.documentation


def _of_metastore() -> Iterator[tuple[str, str, str, str]]:
    from vitrina.observe import monitoring

    totals = {"queue_depth": 0, "queue_oldest": 0, "runners_alive": 0, "notifications_waiting": 0}
    nothing = monitoring.Found(rows=[], totals=totals, statuses=Counter(), rest=None, feeds=[])
    families = [*monitoring._totals(nothing), monitoring._statuses(nothing), monitoring._failures(nothing)]
    families += [monitoring._gauge(gauge, nothing) for gauge in monitoring.PIPELINE_GAUGES]
    families += monitoring._feeds([], monitoring.MAX_PIPELINES)
    yield "vitrina_metastore_up", "gauge", "", "Whether the metastore answers."
    for family in families:
        yield family.name, family.type, ", ".join(f"`{label}`" for label in family._labelnames), family.documentation


def _metric_rows(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    yield from ("| metric | type | labels | |", "|---|---|---|---|")
    for name, kind, labels, words in rows:
        yield f"| `{name}` | {kind} | {labels} | {words} |"


# --- errors --------------------------------------------------------------------------------------------------------

ERRORS_HEAD = """\
# Errors

Every error has a stable code. The API answers with a problem document (RFC 9457): `title`, `status`, `detail`,
`code`, `request_id`, and `errors` with one entry for each wrong field. A run that ended badly has it in `error_code`,
next to `error_message`.
"""
OF_THE_API = {
    "malformed_json": (400, "The body is not JSON."),
    "method_not_allowed": (405, "The path does not support this method; `Allow` lists those that it supports."),
    "body_too_slow": (408, "The body did not arrive within a minute."),
    "body_too_large": (413, "The body is larger than 8 MiB."),
    "internal": (500, "An error in Vitrina itself; the log has the details under the request's id."),
    "metastore_unavailable": (503, "The metastore does not answer; try again after `Retry-After`."),
}


def errors_page() -> str:
    from vitrina.api.errors import status_of
    from vitrina.cli.exits import code_of

    requests = list(_family(errors.RequestError))
    lines = [
        ERRORS_HEAD,
        "## Errors of requests: the caller can fix them\n",
        "| code | status | exit code | |",
        "|---|---|---|---|",
    ]
    for kind in [*requests, errors.ConfigError, errors.CannotConnect]:
        error = kind.__new__(kind)
        lines.append(f"| `{kind.code}` | {status_of(error)} | {int(code_of(error))} | {_said(kind)} |")
    lines += [f"| `{code}` | {status} | | {words} |" for code, (status, words) in OF_THE_API.items()]
    lines += [
        "",
        "## Errors of runs: the class determines what happens next\n",
        "| code | what happens | |",
        "|---|---|---|",
    ]
    lines += [f"| `{kind.code}` | {_next(kind)} | {_said(kind)} |" for kind in _family(errors.RunError)]
    return "\n".join([*lines, ""])


def _family(kind: type[errors.VitrinaError]) -> Iterator[type[errors.VitrinaError]]:
    """Return a class and all subclasses that have their own code."""
    if "code" in vars(kind):
        yield kind
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from _family(inner)


def _next(kind: type[errors.VitrinaError]) -> str:
    if issubclass(kind, errors.Disconnected):
        return "the run ends, and the next claim continues from the checkpoint"
    if issubclass(kind, errors.TransientError):
        return "retried from the checkpoint"
    if issubclass(kind, errors.FatalError):
        return "the pipeline is FAILED until an operator acts"
    if issubclass(kind, errors.RecordError):
        return "only this record fails; the others continue"
    if issubclass(kind, errors.LeaseLost):
        return "this runner stops; the other one continues"
    return "the run ends"


def _said(kind: type[errors.VitrinaError]) -> str:
    return " ".join((kind.__doc__ or "").split())


EXIT_CODES = {
    "OK": "Done; with `run --wait` and `runner --once`: the run succeeded (or nothing waits); with `diff` and"
    " `reconcile`: nothing differs.",
    "FAILED": "A run failed or was stopped, differences or problems were found.",
    "USAGE": "Wrong arguments, or a name that does not exist.",
    "INVALID_CONFIG": "A setting, a definition or a token is not valid.",
    "CANNOT_CONNECT": "The API, the database or the search server does not answer.",
    "CONFLICT": "The state does not allow it now (paused, or running), or another caller changed it first.",
}


def exit_codes_page() -> str:
    from vitrina.cli.exits import ExitCode

    rows = [f"| {int(code)} | {EXIT_CODES[code.name]} |" for code in ExitCode]
    head = "# Exit codes\n\nHow every command of `vitrina` ends. [Errors](errors.md) lists the error codes.\n"
    return "\n".join([head, "| code | meaning |", "|---|---|", *rows, ""])


def main() -> None:
    for name, text in pages().items():
        if "--print" in sys.argv:
            sys.stdout.write(f"{name}\n{text}")
        else:
            (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
