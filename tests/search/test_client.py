"""The client finds its servers, proves who it is, and says what went wrong without giving secrets away."""

import base64
import socket
import ssl
import subprocess
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from tests.search.conftest import Target
from tests.support.http_fault_proxy import Answer, AnswerInstead, Forward, HttpFault, HttpFaultProxy, Request
from vitrina import errors
from vitrina.connectors.search.client import ReplyLost, SearchClient, Unreachable, describe_error, translate
from vitrina.connectors.search.connection import ConnectionOptions

SECRET = "canary-5a1e"


def test_addresses_and_login_come_from_one_variable() -> None:
    options = ConnectionOptions.from_url("https://us%40er:p%2Cw%40x@one:9201/prefix, two:9200")

    assert options.hosts == ("https://one:9201/prefix", "http://two:9200")
    assert (options.username, options.password) == ("us@er", "p,w@x")


def test_the_login_may_stand_in_any_of_the_addresses() -> None:
    options = ConnectionOptions.from_url(f"http://one:9200,http://user:{SECRET}@two:9200,http://one:9200")

    assert options.hosts == ("http://one:9200", "http://two:9200")
    assert (options.username, options.password) == ("user", SECRET)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"http://user:a/{SECRET}@host", "address 1 .* write .* / .* as %2F"),
        (f"http://user:1#{SECRET}@host", "%23"),
        (f"http://user:a?{SECRET}@host", "%3F"),
        (f"http://user:{SECRET},b@host", "%2C"),
        (f"http://user:{SECRET}@one,http://user:other@two", "different logins"),
    ],
)
def test_a_login_that_cannot_be_read_is_refused_and_not_left_out(url: str, told: str) -> None:
    with pytest.raises(errors.ConfigError, match=told) as caught:
        ConnectionOptions.from_url(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["", " , ", "ftp://host", "http://host:port", "http://", "http://[::1"])
def test_wrong_addresses_are_named(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="ELASTICSEARCH_URL") as caught:
        SearchClient(ConnectionOptions.from_url(url))
    assert "//host:port" not in str(caught.value), "who sees a run need not know where the server is"


def test_secrets_are_not_shown() -> None:
    options = ConnectionOptions.from_url(f"http://user:{SECRET}@127.0.0.1:1", api_key=SECRET)
    client = SearchClient(options)

    with pytest.raises(Unreachable) as caught:
        client.health()
    assert SECRET not in repr(options) + str(caught.value)


class DemandLogin(HttpFault):
    """A server that answers only to one Authorization header."""

    def __init__(self, expected: str) -> None:
        super().__init__()
        self._expected = expected

    def handle(self, request: Request, forward: Forward) -> Answer:
        if request.headers.get("authorization") == self._expected:
            return forward(request)
        return Answer(401, b'{"error":{"type":"security_exception","reason":"missing authentication"},"status":401}')


@pytest.mark.parametrize("kind", ["basic", "api key"])
def test_login(proxy: HttpFaultProxy, kind: str) -> None:
    basic = "Basic " + base64.b64encode(b"user:p\xc3\xa4ss").decode()
    proxy.fault = DemandLogin(basic if kind == "basic" else "ApiKey abc")
    options = ConnectionOptions(hosts=(proxy.url,))
    login = {"username": "user", "password": "päss"} if kind == "basic" else {"api_key": "abc"}

    assert SearchClient(ConnectionOptions(hosts=(proxy.url,), **login)).health()["status"]  # type: ignore[arg-type]
    with pytest.raises(errors.FatalError, match="did not accept the login"):
        SearchClient(options).health()


def test_nobody_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        client = SearchClient(ConnectionOptions(hosts=(f"http://127.0.0.1:{reserved.getsockname()[1]}",)))
        with pytest.raises(Unreachable, match="start it or correct ELASTICSEARCH_URL"):
            client.health()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_other_host_is_asked_when_one_is_down(search: Target, position: int) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        hosts = [search.url, search.url.replace("127.0.0.1", "localhost")]
        hosts.insert(position, f"http://127.0.0.1:{reserved.getsockname()[1]}")
        client = SearchClient(ConnectionOptions(hosts=tuple(hosts)))

        assert [client.health()["timed_out"] for _ in range(6)] == [False] * 6


def test_a_reply_that_never_comes_is_told_from_a_server_that_is_down(search: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = ConnectionOptions(hosts=(f"http://127.0.0.1:{silent.getsockname()[1]}",), timeout_seconds=0.3)
        with pytest.raises(ReplyLost, match="did not come in time"):
            SearchClient(options).health()


def test_requests_and_replies_can_be_plain(search: Target) -> None:
    options = ConnectionOptions(hosts=(search.url,), gzip=False)

    assert SearchClient(options).search("*", {"size": 0})["hits"]


def test_refusals_name_the_thing_and_the_reason(client: SearchClient, index: str) -> None:
    client.create_index(index, {})

    with pytest.raises(errors.FatalError, match=f"cannot create index {index}: .*already exists"):
        client.create_index(index, {})
    with pytest.raises(errors.FatalError, match="cannot extend mapping of"):
        client.put_mapping(index, {"properties": {"x": {"type": "no_such_type"}}})
    with pytest.raises(errors.FatalError, match="status 404"):
        client.count(f"{index}-missing")


def test_an_index_that_was_closed_is_told_as_such(client: SearchClient, index: str) -> None:
    client.create_index(index, {})
    client.request("POST", f"/{index}/_close")

    with pytest.raises(errors.FatalError, match="the index is closed: open or delete it"):
        client.count(index)


class Elsewhere(HttpFault):
    """Something that is no search server."""

    def handle(self, request: Request, forward: Forward) -> Answer:
        return Answer(404, b"<html>welcome to our proxy</html>")


@pytest.mark.one_server
def test_what_is_no_search_server_is_told_as_such(search: Target, proxy: HttpFaultProxy) -> None:
    proxy.fault = Elsewhere()
    with pytest.raises(errors.FatalError, match="does not answer like this: check ELASTICSEARCH_URL"):
        SearchClient(ConnectionOptions(hosts=(proxy.url,))).health()
    with pytest.raises(errors.FatalError, match="does not use TLS: write http:// in ELASTICSEARCH_URL"):
        SearchClient(ConnectionOptions(hosts=(search.url.replace("http:", "https:"),))).health()


def test_an_analyzer_that_the_server_lacks_is_explained(client: SearchClient, index: str) -> None:
    for part in ({"filter": ["no_such"]}, {"tokenizer": "no_such"}):
        analyzer = {"type": "custom", "tokenizer": "standard", **part}
        with pytest.raises(errors.FatalError, match=r"no_such.*misspelled in options\.index, or belongs to a module"):
            client.create_index(index, {"settings": {"analysis": {"analyzer": {"own": analyzer}}}})


def test_index_and_alias_calls(client: SearchClient, index: str) -> None:
    assert client.find_index(index) is None
    assert client.list_aliases(f"{index}.w.*") == {}
    client.create_index(index, {"aliases": {f"{index}.w.1": {}}})
    assert set(client.find_index(f"{index}.w.1") or {}) == {index}
    client.update_aliases(
        [
            {"remove": {"index": index, "alias": f"{index}.w.1", "must_exist": True}},
            {"add": {"index": index, "alias": f"{index}.w.2"}},
        ]
    )
    assert client.list_aliases(f"{index}.w.*") == {f"{index}.w.2": {index}}
    with pytest.raises(errors.FatalError):
        client.update_aliases(
            [
                {"remove": {"index": index, "alias": f"{index}.w.1", "must_exist": True}},
                {"add": {"index": index, "alias": f"{index}.w.3"}},
            ]
        )
    assert client.list_aliases(f"{index}.w.*") == {f"{index}.w.2": {index}}, "all actions or none"
    client.delete_index(index)
    client.delete_index(index)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself; the key is beside it."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=search"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "ca.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "ca.pem"


def test_tls_with_a_ca_file_or_a_fingerprint(search: Target, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    digest = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hex"], input=der, check=True, capture_output=True
    ).stdout.decode()
    fingerprint = digest.split()[-1]

    with HttpFaultProxy(search.port, tls=context) as proxy:
        hosts = (proxy.url,)
        assert SearchClient(ConnectionOptions(hosts, ca_file=certificate)).health()
        assert SearchClient(ConnectionOptions(hosts, fingerprint=fingerprint)).health()
        with pytest.raises(errors.FatalError, match="did not prove its identity"):
            SearchClient(ConnectionOptions(hosts)).health()
        with pytest.raises(errors.FatalError, match="ELASTICSEARCH_FINGERPRINT"):
            SearchClient(ConnectionOptions(hosts, fingerprint="0" * 64)).health()


@pytest.mark.parametrize("fingerprint", ["abc", "z" * 64, "0" * 40])
def test_a_fingerprint_that_is_none_is_named(fingerprint: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"ELASTICSEARCH_FINGERPRINT is '{fingerprint}': .*openssl x509"):
        SearchClient(ConnectionOptions(("https://127.0.0.1:1",), fingerprint=fingerprint))


def test_a_fingerprint_may_have_colons() -> None:
    SearchClient(ConnectionOptions(("https://127.0.0.1:1",), fingerprint="AB:" * 31 + "ab")).close()


def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("not a certificate")
    for name, told in (("missing.pem", "No such file"), ("empty.pem", "certificates in PEM form")):
        with pytest.raises(errors.ConfigError, match=f"ELASTICSEARCH_CA_FILE=.*{name} cannot be used .*{told}"):
            SearchClient(ConnectionOptions(("https://127.0.0.1:1",), ca_file=tmp_path / name))


@pytest.mark.parametrize("kind", ["refused", "silent", "untrusted", "busy", "forbidden"])
@pytest.mark.one_server
def test_messages_do_not_name_the_server(search: Target, certificate: Path, kind: str) -> None:
    """Pipeline authors read them in their runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.socket() as closed,
        HttpFaultProxy(search.port, tls=context) as untrusted,
        HttpFaultProxy(search.port) as answering,
    ):
        closed.bind(("127.0.0.1", 0))
        answering.fault = AnswerInstead(429 if kind == "busy" else 403, times=1)
        addresses = {
            "refused": f"http://127.0.0.1:{closed.getsockname()[1]}",
            "silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "untrusted": untrusted.url,
        }
        address = addresses.get(kind, answering.url)
        client = SearchClient(
            ConnectionOptions.from_url(address.replace("//", f"//somebody:{SECRET}@")),
        )
        client.options = replace(client.options, timeout_seconds=0.3, bulk_timeout_seconds=0.3)
        with pytest.raises(errors.RunError) as caught:
            raise translate("cannot write", client.bulk("x", b"{}"))

    said = str(caught.value)
    port = address.rpartition(":")[2]
    assert said
    assert not [word for word in ("127.0.0.1", port, SECRET, "somebody") if word in said], said


def test_addresses_of_nodes_in_the_servers_own_words_are_left_out() -> None:
    error = {"type": "remote", "reason": "[node-1][10.0.0.5:9300][indices:data/write/bulk[s]] on [search-1.lan:9300]"}

    assert describe_error(error) == "[node-1][indices:data/write/bulk[s]] on "


def test_a_search_that_all_shards_refuse_says_why(client: SearchClient, index: str) -> None:
    client.request("PUT", f"/{index}/_doc/1", {"refresh": "true"}, body={"title": "x"})

    with pytest.raises(errors.FatalError, match=r"all shards failed: .*[Ii]ds can't be empty"):
        client.search(index, {"query": {"ids": {"values": [""]}}})
