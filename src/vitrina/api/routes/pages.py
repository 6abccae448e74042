"""`/`, `/ui/`, `/docs`: pages for people, served from here alone."""

import html
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from vitrina import __version__

router = APIRouter(include_in_schema=False)

# The built console, if it is part of this installation.
CONSOLE = Path(__file__).resolve().parents[1] / "console"


@router.get("/")
def root() -> RedirectResponse:
    return RedirectResponse("/ui/", status_code=307)


@router.get("/ui")
def ui() -> RedirectResponse:
    return RedirectResponse("/ui/", status_code=307)


@router.get("/ui/{path:path}")
def console(path: str) -> Response:
    """Serve a file of the console; its own addresses all open the same page."""
    if not (CONSOLE / "index.html").is_file():
        return HTMLResponse(_page("Vitrina", _WELCOME))
    file = (CONSOLE / path).resolve()
    if file.is_file() and file.is_relative_to(CONSOLE):
        # Built files have their hash in their name; the page that names them does not.
        fresh = "no-cache" if file.suffix == ".html" else "public, max-age=31536000, immutable"
        return FileResponse(file, headers={"Cache-Control": fresh})
    if path.startswith("assets/"):
        raise HTTPException(404)
    return FileResponse(CONSOLE / "index.html", headers={"Cache-Control": "no-cache"})


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """Serve the API reference, built from the OpenAPI document. It loads nothing from other hosts."""
    return HTMLResponse(_page("Vitrina API", _reference(request.app.openapi())))


_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; letter-spacing: -.02em; } h2 { margin-top: 2.5rem; font-size: 1.15rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .92em; }
pre { overflow: auto; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 8px; }
details { border: 1px solid var(--line); border-radius: 8px; margin: .4rem 0; padding: .45rem .8rem; }
summary { cursor: pointer; } summary b { display: inline-block; min-width: 4.6rem; font-size: .85em; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
  padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
.quiet { opacity: .7; } a { color: inherit; }
"""

_WELCOME = f"""
<h1>Vitrina</h1>
<p>Configuration-driven ETL: a pipeline is a row in Postgres. This server is its control plane: it stores the
definitions, requests runs and reports their results.</p>
<ul>
<li><a href="/docs">API reference</a> (<a href="/openapi.json">OpenAPI document</a>)</li>
<li><a href="/health">Health</a> · <a href="/metrics">Metrics</a> · <a href="/version">Version</a></li>
</ul>
<pre>vitrina pipelines
vitrina run film_dim_full --wait
vitrina status film_dim_full</pre>
<p class="quiet">Version {__version__}. The console is not part of this installation: in a checkout,
<code>make console</code> builds it (it needs Node 20.19 or newer).</p>
"""


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport"
        f' content="width=device-width,initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )


@cache
def _escaped(text: str) -> str:
    return html.escape(text)


def _reference(document: dict[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation.get("tags", ["other"])[0], []).append(_operation(path, method, operation))
    parts = [f"<h2>{_escaped(name)}</h2>{''.join(items)}" for name, items in groups.items()]
    return (
        f"<h1>Vitrina API {_escaped(__version__)}</h1><p>{_escaped(document['info'].get('description', ''))}"
        ' The same as <a href="/openapi.json">OpenAPI document</a>.</p>' + "".join(parts)
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    description = _escaped(operation.get("description", operation.get("summary", "")))
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{_escaped(path)}</code>"
        f' <span class="quiet">{_escaped(operation.get("summary", ""))}</span></summary>'
        f"<p>{description}</p>{_parameters(operation)}{_body(operation)}{_answers(operation)}</details>"
    )


def _parameters(operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{_escaped(p['name'])}</code></td><td>{_escaped(p['in'])}</td>"
        f"<td>{_escaped(p.get('description', ''))}</td></tr>"
        for p in operation.get("parameters", [])
    ]
    return f"<table><tr><th>parameter</th><th>in</th><th></th></tr>{''.join(rows)}</table>" if rows else ""


def _body(operation: dict[str, Any]) -> str:
    import json

    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    shown = [
        f"<p>{_escaped(example.get('summary', name))}</p>"
        f"<pre>{_escaped(json.dumps(example['value'], indent=2, ensure_ascii=False))}</pre>"
        for name, example in content.get("examples", {}).items()
    ]
    return "".join(shown)


def _answers(operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{_escaped(code)}</code></td><td>{_escaped(answer.get('description', ''))}</td></tr>"
        for code, answer in operation.get("responses", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"
