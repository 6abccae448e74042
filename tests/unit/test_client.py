"""What the client makes of answers that no Vitrina API sends, of odd addresses and of odd tokens."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from vitrina import answers, calls, errors
from vitrina.cli import doctor
from vitrina.client import Client
from vitrina.settings import Settings

READS = [answers.validated, answers.plain]
Read = Callable[[Any, bytes, str], Any]
UNLIKE = "not as a Vitrina API does: check VITRINA_API_URL"
PAGE = "<html>log in</html>"


@dataclass
class Something:
    """A server of something else. It gives one answer to each request."""

    status: int = 200
    content: str = PAGE
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/html"})
    url: str = ""


@pytest.fixture
def something() -> Iterator[Something]:
    said = Something()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.content.encode("latin-1"))

        do_POST = do_DELETE = do_GET  # noqa: N815 - named by http.server

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    said.url = f"http://127.0.0.1:{server.server_port}"
    yield said
    server.shutdown()
    thread.join()
    server.server_close()


# --- answers of something else --------------------------------------------------------------------------------------


def read_all(client: Client) -> None:
    """Use what a command uses of each answer."""
    _ = [pipeline.name for pipeline in client.list_pipelines()]


CALLS: dict[str, Callable[[Client], object]] = {
    "page": read_all,
    "object": lambda client: client.status("films").pipeline,
    "request": lambda client: client.run("films").run_requested_at,
    "whole": lambda client: client.list_targets().items,
    "graph": lambda client: client.graph().nodes,
    "schema": lambda client: client.pipeline_schema(),
    "health": lambda client: client.health().status,
    "log": lambda client: client.run_log("f3b9"),
    "events": lambda client: next(client.events()),
    "export": lambda client: client.export(),
    "differences": lambda client: client.differences("films", "csv"),
    "delete": lambda client: client.delete_pipeline("films"),
    "revoke": lambda client: client.revoke_token("ci"),
    "remove": lambda client: client.remove_connection("crm"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("content", [PAGE, "", "null", "[]", '"text"', "\xff\xfe", "[" * 100_000, '{"detail": 1}'])
def test_an_answer_of_something_else_is_no_success(
    something: Something, call: Callable[[Client], object], content: str, read: Read
) -> None:
    something.content = "null" if call is CALLS["schema"] else content  # a schema may be any object
    with Client(something.url, read=read) as client, pytest.raises(errors.CannotConnect, match=UNLIKE):
        call(client)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("call", [CALLS["page"], CALLS["object"], CALLS["request"]], ids=["page", "object", "request"])
def test_an_empty_object_is_noticed_before_it_is_printed(
    something: Something, call: Callable[[Client], object], read: Read
) -> None:
    something.content = "{}"
    with Client(something.url, read=read) as client, pytest.raises(errors.CannotConnect, match=UNLIKE):
        call(client)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("items", ["null", "{}", "[null]", '[1, "x"]', '[{"name": "films"}, 1]', "[[]]"])
def test_a_page_has_a_list_of_objects(something: Something, items: str, read: Read) -> None:
    something.content = f'{{"items": {items}, "next_cursor": null}}'
    with Client(something.url, read=read) as client, pytest.raises(errors.CannotConnect, match=UNLIKE):
        client.list_pipelines()


@pytest.mark.parametrize("call", [call for name, call in CALLS.items() if name != "health"])
def test_a_redirect_is_not_followed_and_its_address_is_named(
    something: Something, call: Callable[[Client], object]
) -> None:
    something.status = 302
    something.headers["Location"] = "https://user:s3cr3t@sso.example/login?state=s3cr3t"
    with Client(something.url) as client, pytest.raises(errors.CannotConnect) as caught:
        call(client)
    assert "answered 302, a redirect to https://sso.example/login, which is not followed" in str(caught.value)
    assert "set VITRINA_API_URL to the address of the API itself" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_redirect_to_nowhere_is_no_success(something: Something, call: Callable[[Client], object]) -> None:
    something.status = 304
    with Client(something.url) as client, pytest.raises(errors.CannotConnect, match=UNLIKE):
        call(client)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_leave_the_path_is_not_sent(something: Something, name: str) -> None:
    with Client(something.url) as client:
        for call in (client.get_pipeline, client.delete_pipeline, client.revoke_token, client.get_run):
            with pytest.raises(errors.NotFound, match=f"'{name}' is neither a name nor an id"):
                call(name)


# --- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("call", [CALLS["page"], CALLS["whole"], CALLS["graph"]], ids=["page", "whole", "graph"])
def test_a_repeated_cursor_ends_a_list(something: Something, call: Callable[[Client], object], read: Read) -> None:
    whole = '"items": [], "allowed": [], "nodes": [], "edges": []'
    something.content = f'{{{whole}, "next_cursor": "abc"}}'
    with (
        Client(something.url, read=read) as client,
        pytest.raises(errors.CannotConnect, match="the cursor 'abc' twice"),
    ):
        call(client)


@pytest.mark.timeout(20)
def test_repeated_lines_end_a_log(something: Something) -> None:
    line = '{"id": 1, "at": "2025-03-01T12:00:00Z", "level": "info", "topic": "run.started", "payload": {}}'
    something.content = f'{{"items": [{", ".join([line] * 500)}], "next_cursor": null}}'
    with Client(something.url) as client, pytest.raises(errors.CannotConnect, match="repeated line 1 of the log"):
        client.run_log("f3b9")


# --- secrets in addresses and tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000/base", "http://127.0.0.1:8000/base"),
        ("http://user:s3cr3t@host:1", "http://host:1"),
        ("https://user:s3/cr3t@s3cr3t#s3cr3t@host/base", "https://host/base"),
        ("user:s3cr3t@host", "host"),
    ],
)
def test_an_address_is_shown_without_its_login(url: str, shown: str) -> None:
    assert calls.without_login(url) == shown


@pytest.mark.parametrize("address", ["http://user:s3cr3t@127.0.0.1:1", "ftp://user:s3cr3t@host", "u:s3cr3t@host"])
def test_errors_do_not_show_the_password_of_the_address(address: str) -> None:
    with pytest.raises(errors.VitrinaError) as caught, Client(address) as client:
        client.list_pipelines()
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in doctor._check_api(Settings(api_url=address)).finding


def test_answers_do_not_show_the_password_of_the_address(something: Something) -> None:
    address = something.url.replace("http://", "http://user:s3cr3t@")
    with Client(address) as client, pytest.raises(errors.CannotConnect, match=UNLIKE) as caught:
        client.list_pipelines()
    assert "s3cr3t" not in str(caught.value)
    something.content = '{"status": "ok", "version": "1", "database": "ok"}'
    assert doctor._check_api(Settings(api_url=address)).finding == f"{something.url} runs 1"


@pytest.mark.parametrize("token", ["abc\ndef", "abc\r\nX: y", "abc def", "abc\x01def", "t\u00f6k\u20acn", "abc\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(errors.ConfigError, match="VITRINA_TOKEN contains") as caught:
        Client("http://127.0.0.1:1", token)
    assert token[:3] not in str(caught.value)


# --- addresses that are none ----------------------------------------------------------------------------------------

NO_ADDRESSES = [
    "http://[::1",
    "http://a b",
    "http://127.0.0.1:abc",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:1\nx",
    "http://127.0.0.1:1/a b",
    "http://127.0.0.1:1/a\x7f",
    "http://user@a b",
    "http://münchen..:1",
    "http://",
    "ftp://example",
    "nowhere",
    "\udcff",
]


@pytest.mark.parametrize("address", NO_ADDRESSES)
@pytest.mark.parametrize("call", [read_all, CALLS["events"]], ids=["page", "events"])
def test_an_address_that_is_none_is_an_error_of_the_settings(address: str, call: Callable[[Client], object]) -> None:
    with pytest.raises(errors.ConfigError, match="is not an http:// or https:// URL"), Client(address) as client:
        call(client)


@pytest.mark.parametrize("call", [read_all, CALLS["events"]], ids=["page", "events"])
def test_an_answer_that_cannot_be_unpacked_is_an_error_of_the_connection(
    something: Something, call: Callable[[Client], object]
) -> None:
    something.status, something.headers["Content-Encoding"] = 404, "gzip"
    address = something.url.replace("http://", "http://user@")  # httpx unpacks
    with Client(address) as client, pytest.raises(errors.CannotConnect):
        call(client)
