"""Call Elasticsearch or OpenSearch over HTTP, and translate every failure into a Vitrina error."""

import json
import logging
import re
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import elastic_transport
import orjson
import urllib3.exceptions

from vitrina import deep_json, errors
from vitrina.connectors.search.connection import ConnectionOptions, login_headers, node_config

Json = dict[str, Any]

# It warns about every failed request. Our errors explain the failure, and the run shows that it waits.
logging.getLogger("elastic_transport.node_pool").setLevel(logging.ERROR)

JSON_TYPE = "application/json"
NDJSON_TYPE = "application/x-ndjson"
# The parts of a bulk reply that are needed for each item; the rest would only cost time.
BULK_FILTER = (
    "error,status,items.*.status,items.*.result,items.*.error.type,items.*.error.reason,items.*.error.caused_by"
)
# For updates that return the requested fields of their documents.
BULK_FILTER_RETURNING = BULK_FILTER + ",items.*.get._source"
# A server repeats a refused value in full, several times, and the fast parser needs twelve times the reply's size.
LARGE_REPLY_BYTES = 8 * 1024 * 1024
# How long the server keeps the position between two pages.
SCROLL_KEPT = "5m"
# Statuses which say that the server, or a proxy in front of it, cannot accept the request now.
BUSY_STATUSES = frozenset({429, 502, 503, 504})
# The error for a part of an analyzer that the server does not know.
LACKING = re.compile(r"failed to find (?:\w+ )*(?:filter|tokenizer|analyzer)|Unknown (?:\w+ )+type \[")
LACKING_HELP = (
    "it is misspelled in options.index, or belongs to a module or plugin that the server does not have (the server"
    " of `vitrina search start` has only the core)"
)
# Errors of an index, or of the whole cluster, that accepts no writes for now.
BLOCK_TYPES = frozenset({"cluster_block_exception", "index_create_block_exception"})
_FLOOD_STAGE = (
    "the server does that when a disk passes its flood-stage watermark: free disk space; if the block stays, clear {}"
)
_BY_HAND = "a user set {}: clear it"
# By the servers' wording: the setting that holds the block, and what to do about it.
_BLOCKS = (
    ("index has read-only-allow-delete", "index.blocks.read_only_allow_delete", _FLOOD_STAGE),
    ("cluster read-only / allow delete", "cluster.blocks.read_only_allow_delete", _FLOOD_STAGE),
    ("create-index", "cluster.blocks.create_index", _FLOOD_STAGE),
    ("index read-only", "index.blocks.read_only", _BY_HAND),
    ("cluster read-only", "cluster.blocks.read_only", _BY_HAND),
    ("index write", "index.blocks.write", _BY_HAND),
    ("index metadata", "index.blocks.metadata", _BY_HAND),
    ("index read (", "index.blocks.read", _BY_HAND),
)
# Servers name each other by address in their errors. Users who may see a run need not know the addresses.
_NODE_ADDRESS = re.compile(r"\[(?:[\w.-]+|\[?[0-9a-f:]+\]?):\d{4,5}\]")


class Unreachable(errors.Disconnected):
    """Signal that no connection was made, so the server has not seen the request."""


class ReplyLost(errors.Disconnected):
    """Signal that a request was sent but its reply was lost: the server may have applied it or may still do so."""


class Blocked(errors.TransientError):
    """Signal that the index or cluster refuses writes or new indexes until the block is lifted."""


class Missing(errors.FatalError):
    """Signal that the index or alias of a request does not exist."""

    code = "missing"


@dataclass(frozen=True)
class Reply:
    """Hold a response: the status and the decoded JSON, or None if it was not JSON."""

    status: int
    body: Any

    @property
    def error_type(self) -> str:
        error = self._error
        return str(error.get("type", "")) if isinstance(error, dict) else ""

    @property
    def reason(self) -> str:
        error = self._error
        return describe_error(error) if isinstance(error, dict) else str(error or f"status {self.status}")

    @property
    def _error(self) -> Any:
        return self.body.get("error") if isinstance(self.body, dict) else None


class SearchClient:
    """Provide one client for many threads; each request takes its own connection from the pool."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._headers = login_headers(options)
        self._transport = elastic_transport.Transport(
            [node_config(host, options, number) for number, host in enumerate(options.hosts, start=1)],
            serializers=dict.fromkeys((JSON_TYPE, NDJSON_TYPE, "application/*", "text/*"), _BytesSerializer()),
            max_retries=0,
            retry_on_status=(),
            meta_header=False,
        )

    def close(self) -> None:
        self._transport.close()

    def health(self, *, timeout_seconds: float | None = None) -> Json:
        """Return the cluster's health. Raise if the server does not answer."""
        return self._get("/_cluster/health", timeout_seconds=timeout_seconds)

    def create_index(self, name: str, body: Json) -> None:
        """Create an index and wait only for its primary shards. Replicas may find no node and would delay the reply."""
        reply = self.request("PUT", _path(name), {"wait_for_active_shards": "1"}, body=body)
        self._expect("create index", name, reply)

    def find_index(self, name: str) -> Json | None:
        """Return aliases, mappings and settings by concrete index of this name, or None if nothing has the name."""
        reply = self.request("GET", _path(name))
        if reply.status == 404:
            return None
        return self._expect("read index", name, reply)

    def list_indexes(self, pattern: str) -> Json:
        """Return aliases, mappings and settings of every concrete index whose name matches the pattern."""
        return self._get(_path(pattern), {"expand_wildcards": "open,closed,hidden"})

    def delete_index(self, name: str) -> None:
        """Delete an index by its concrete name, if it exists."""
        reply = self.request("DELETE", _path(name))
        if reply.status != 404:
            self._expect("delete index", name, reply)

    def get_mapping(self, name: str) -> Json:
        """Return the mapping of the one concrete index that the name refers to."""
        mappings = self._get(_path(name, "_mapping"))
        if len(mappings) != 1:
            raise errors.FatalError(
                f"{name} refers to {len(mappings)} indexes ({', '.join(sorted(mappings))}), not one"
            )
        mapping: Json = next(iter(mappings.values()))["mappings"]
        return mapping

    def put_mapping(self, name: str, mapping: Json) -> None:
        self._expect("extend mapping of", name, self.request("PUT", _path(name, "_mapping"), body=mapping))

    def get_settings(self, name: str) -> Json:
        """Return the explicit settings of the one index of this name, flat (`index.number_of_replicas`)."""
        settings = self._get(_path(name, "_settings"), {"flat_settings": "true"})
        flat: Json = next(iter(settings.values()))["settings"]
        return flat

    def put_settings(self, name: str, settings: Json) -> None:
        """Change settings; None restores the server's default."""
        self._expect("change settings of", name, self.request("PUT", _path(name, "_settings"), body=settings))

    def refresh(self, name: str) -> None:
        """Make everything written so far visible to searches."""
        timeout = self.options.bulk_timeout_seconds
        reply = self.request("POST", _path(name, "_refresh"), timeout_seconds=timeout)
        shards = self._expect("refresh", name, reply)["_shards"]
        if shards["failed"]:
            raise _not_whole(name, shards["failed"])

    def list_aliases(self, pattern: str) -> dict[str, set[str]]:
        """Return concrete indexes by alias, for every alias that matches the pattern."""
        reply = self.request("GET", _path("_alias", pattern))
        if reply.status == 404:
            return {}
        found: dict[str, set[str]] = {}
        for index, entry in self._expect("list aliases", pattern, reply).items():
            for alias in entry["aliases"]:
                found.setdefault(alias, set()).add(index)
        return found

    def update_aliases(self, actions: Sequence[Json]) -> None:
        """Apply all of the actions or none, atomically for searches."""
        reply = self.request("POST", "/_aliases", body={"actions": list(actions)})
        self._expect("change aliases", "", reply)

    def count(self, name: str) -> int:
        return int(_whole(name, self._get(_path(name, "_count")))["count"])

    def size(self, name: str) -> int:
        """Return the size of the index on disk in bytes, without its replicas."""
        return int(self._get(_path(name, "_stats", "store"))["_all"]["primaries"]["store"]["size_in_bytes"])

    def count_ids(self, name: str, ids: Sequence[str]) -> int:
        asked = {"query": {"ids": {"values": list(ids)}}}
        reply = self.request("POST", _path(name, "_count"), body=asked)
        return int(_whole(name, self._expect("count", name, reply))["count"])

    def search(self, name: str, body: Json) -> Json:
        return _whole(name, self._expect("search", name, self.request("POST", _path(name, "_search"), body=body)))

    def scroll(self, name: str, body: Json) -> Iterator[list[Json]]:
        """Yield every document as of now, in pages without an order. All servers support scrolling."""
        page = self._expect(
            "read documents of",
            name,
            self.request("POST", _path(name, "_search"), {"scroll": SCROLL_KEPT}, body={"sort": ["_doc"], **body}),
        )
        scroll_id = page.get("_scroll_id")
        try:
            while hits := _whole_page(name, page):
                yield hits
                following = {"scroll": SCROLL_KEPT, "scroll_id": scroll_id}
                page = self._expect("read documents of", name, self.request("POST", "/_search/scroll", body=following))
                scroll_id = page.get("_scroll_id", scroll_id)
        finally:
            with suppress(errors.RunError):  # the server ends it by itself later
                self.request("DELETE", "/_search/scroll", body={"scroll_id": scroll_id})

    def bulk(self, target: str, body: bytes, returned: Sequence[str] = ()) -> Reply:
        """Send NDJSON action lines to an alias. The caller evaluates the status of each item.

        `returned` names the fields that each updated document returns.
        """
        parameters = {"require_alias": "true", "filter_path": BULK_FILTER}
        if returned:
            parameters |= {"filter_path": BULK_FILTER_RETURNING, "_source_includes": ",".join(returned)}
        reply = self.request(
            "POST",
            _path(target, "_bulk"),
            parameters,
            body=body,
            content_type=NDJSON_TYPE,
            timeout_seconds=self.options.bulk_timeout_seconds,
        )
        if reply.status == 200 and not isinstance(reply.body, dict):
            raise ReplyLost("the search server answered a bulk request with a body that is not JSON")
        return reply

    def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        body: Json | bytes | None = None,
        content_type: str = JSON_TYPE,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """Send one HTTP request, at most once to each server. Connection failures become `Disconnected`."""
        headers = {"accept": JSON_TYPE, **self._headers}
        payload = orjson.dumps(body) if isinstance(body, dict) else body
        if payload is not None:
            headers["content-type"] = content_type
            if self.options.gzip:
                headers["content-encoding"] = "gzip"
                payload = _gzip(payload)
        response = self._perform(
            method,
            f"{path}?{urlencode(parameters)}" if parameters else path,
            body=payload,
            headers=headers,
            request_timeout=timeout_seconds or self.options.timeout_seconds,
        )
        return Reply(response.meta.status, _decoded(response.body, frugally=content_type == NDJSON_TYPE))

    def _perform(self, method: str, target: str, **request: Any) -> elastic_transport.TransportApiResponse:
        """Try the hosts in turn, each at most once. Continue only if a host was unreachable and so saw no request."""
        left = len(self.options.hosts)
        while True:
            try:
                return self._transport.perform_request(method, target, **request)
            except elastic_transport.TransportError as exc:
                left -= 1
                error = _disconnected(exc)
                if not left or not isinstance(error, Unreachable):
                    raise error from exc

    def _get(
        self, path: str, parameters: Mapping[str, str] | None = None, *, timeout_seconds: float | None = None
    ) -> Json:
        return self._expect("read", path, self.request("GET", path, parameters, timeout_seconds=timeout_seconds))

    def _expect(self, verb: str, name: str, reply: Reply) -> Json:
        if 200 <= reply.status < 300 and isinstance(reply.body, dict):
            return reply.body
        raise translate(f"cannot {verb} {name}".rstrip(), reply)


def _disconnected(exc: elastic_transport.TransportError) -> errors.RunError:
    """Translate a transport error. The transport's own message repeats the server's address."""
    if isinstance(exc, elastic_transport.TlsError):
        problem = _tls_problem(exc)
        advice = "check ELASTICSEARCH_CA_FILE or ELASTICSEARCH_FINGERPRINT"
        if problem == "wrong version number":
            advice = "it does not use TLS: write http:// in ELASTICSEARCH_URL, or enable TLS there"
        return errors.FatalError(f"the search server did not prove its identity ({problem}): {advice}")
    if isinstance(exc.__cause__, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError):
        return Unreachable("no search server answers: start it or correct ELASTICSEARCH_URL")
    if isinstance(exc, elastic_transport.ConnectionTimeout):
        return ReplyLost("the search server's reply did not come in time")
    return ReplyLost("the connection to the search server was lost before the reply came")


def _tls_problem(exc: BaseException) -> str:
    """Return OpenSSL's name for the problem."""
    cause: BaseException | None = exc
    while cause is not None:
        found = cause if isinstance(cause, ssl.SSLError) else next(_tls_errors_in(cause), None)
        if found is not None:
            return str(found.reason or type(found).__name__).replace("_", " ").lower()
        cause = cause.__cause__ or cause.__context__
    return "its certificate is not the expected one"


def _tls_errors_in(exc: BaseException) -> Iterator[ssl.SSLError]:
    """Find TLS errors among the arguments, where urllib3 puts the original error."""
    return (argument for argument in exc.args if isinstance(argument, ssl.SSLError))


def _whole_page(name: str, page: Json) -> list[Json]:
    hits: list[Json] = _whole(name, page)["hits"]["hits"]
    return hits


def _whole(name: str, answer: Json) -> Json:
    """Raise for a partial answer, in which the documents of a silent shard would seem to be missing."""
    shards = answer.get("_shards", {})
    # A shard that is on no node is not counted as failed, because it was not asked.
    silent = shards.get("total", 0) - shards.get("successful", 0)
    if silent or answer.get("timed_out"):
        raise _not_whole(name, silent)
    return answer


def _not_whole(name: str, shards: int) -> errors.TransientError:
    return errors.TransientError(f"{shards} shard(s) of {name} did not answer: try again when all are available")


def translate(what: str, reply: Reply) -> errors.RunError:
    """Translate the refusal of a whole request into an error that says what to do next."""
    message = f"{what}: {reply.reason}"
    if reply.error_type in BLOCK_TYPES:
        return Blocked("; ".join(filter(None, [message.rstrip("; "), _about_block(message)])))
    if reply.status in BUSY_STATUSES:
        return errors.TransientError(f"{message} (status {reply.status})")
    if reply.status in (401, 403):
        return errors.FatalError(
            f"{message}; the search server did not accept the login (status {reply.status}): "
            "check user and password in ELASTICSEARCH_URL or ELASTICSEARCH_API_KEY, and the role's rights"
        )
    if LACKING.search(message):
        message += f"; {LACKING_HELP}"
    if reply.error_type == "index_closed_exception":
        message += "; the index is closed: open or delete it"
    if not isinstance(reply.body, dict):
        message += "; a search server does not answer like this: check ELASTICSEARCH_URL and any proxy in front of it"
    kind = Missing if reply.status == 404 else errors.FatalError
    return kind(f"{message} (status {reply.status})")


def _about_block(message: str) -> str:
    """Return how to lift the block; empty while a server starts, when it accepts no writes either."""
    return next((help_.format(setting) for words, setting, help_ in _BLOCKS if words in message), "")


def describe_error(error: Mapping[str, Any]) -> str:
    """Return the reason and its causes, outermost first, each once."""
    reasons: list[str] = []
    level: Any = error
    while isinstance(level, Mapping):
        reason = str(level.get("reason") or level.get("type") or "")
        if reason and not any(reason in said for said in reasons):
            reasons.append(reason)
        # For "all shards failed", only the failure of a shard names the cause.
        level = level.get("caused_by") or next((one.get("reason") for one in level.get("failed_shards", ())), None)
    return _NODE_ADDRESS.sub("", ": ".join(reasons)) or "no reason given"


class _BytesSerializer(elastic_transport.Serializer):
    """Pass bytes through unchanged: we compress requests ourselves, and must notice a truncated reply."""

    def dumps(self, data: bytes) -> bytes:
        return data

    def loads(self, data: bytes) -> bytes:
        return data


def _gzip(payload: bytes) -> bytes:
    # Level 1 is six times as fast as the transport's level 9 and a few percent larger.
    compressor = zlib.compressobj(level=1, wbits=31)
    return compressor.compress(payload) + compressor.flush()


def _decoded(body: Any, *, frugally: bool) -> Any:
    """Decode a reply. Returned documents may hold unusual values and be deeply nested."""
    if not body:
        return None
    with suppress(ValueError):
        if frugally and len(body) > LARGE_REPLY_BYTES:
            with suppress(RecursionError):
                return json.loads(body)
        return deep_json.loads(body)
    return None


def _path(*parts: str) -> str:
    return "".join("/" + quote(part, safe="*,") for part in parts)
