"""Store objects in an S3 bucket with obstore, which supports conditional writes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrina.connectors.files.objects import Changed, Listed, Stored, Version
from vitrina.connectors.files.urls import Bucket
from vitrina.errors import ConfigError, Disconnected, FatalError

if TYPE_CHECKING:
    from obstore.store import S3Store

# How long obstore itself retries while the server is busy; after that the run waits and tries again.
_RETRIES: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_CONNECT_SECONDS, _REQUEST_SECONDS = 10, 120
# Objects that one request deletes.
_DELETED_AT_ONCE = 1000
_RANGE_BYTES = 16 << 20


class BucketObjects:
    """Access the objects below a prefix of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._store = _open(bucket)

    def find(self, name: str) -> Stored | None:
        try:
            with self._translated(name):
                found = _obstore().get(self._store, name)
                content = bytes(found.bytes())
        except FileNotFoundError:
            return None
        version = found.meta["e_tag"]
        if version is None:
            raise FatalError(f"{self._bucket.endpoint or 'the S3 server'} sends no ETag, which every write depends on")
        return Stored(content, version)

    def get(self, name: str) -> bytes:
        with self._translated(name):
            return bytes(_obstore().get(self._store, name).bytes())

    def put(self, name: str, content: memoryview) -> None:
        """Write the object in one request. An unfinished multipart upload would stay, invisible but billed."""
        with self._translated(name):
            _obstore().put(self._store, name, content, use_multipart=False)

    def replace(self, name: str, content: bytes, expected: Version | None) -> None:
        mode: Any = "create" if expected is None else {"e_tag": expected}
        with self._translated(name):
            try:
                _obstore().put(self._store, name, content, mode=mode, use_multipart=False)
            except FileNotFoundError as exc:  # deleted since it was read
                raise Changed(name) from exc

    def list(self, prefix: str) -> Iterator[Listed]:
        with self._translated(prefix):
            for page in _obstore().list(self._store, prefix, chunk_size=1000):
                for one in page:
                    yield Listed(str(one["path"]), int(one["size"]), one["last_modified"].timestamp(), _version(one))

    def download(self, listed: Listed, path: Path, check: Callable[[], None]) -> None:
        """Copy an object into a file, in ranges; each range has its own time limit and retries.

        Raise `Changed` if it is no longer what was listed. Call `check` before each range.
        """
        with path.open("wb") as written:
            while (done := written.tell()) < listed.size:
                check()
                written.write(self._range(listed, done, min(done + _RANGE_BYTES, listed.size)))

    def _range(self, listed: Listed, start: int, end: int) -> memoryview:
        with self._translated(listed.name):
            found = _obstore().get(self._store, listed.name, options={"range": (start, end)})
            if _version(found.meta) != listed.version or found.meta["size"] != listed.size:
                raise Changed(listed.name)
            content = memoryview(found.bytes())
        if len(content) != end - start:
            raise Disconnected(f"{self._where}: {listed.name} came with {len(content)} of {end - start} bytes")
        return content

    def delete(self, names: Iterable[str]) -> None:
        every = list(names)
        for start in range(0, len(every), _DELETED_AT_ONCE):
            with self._translated(every[start]):
                try:
                    _obstore().delete(self._store, every[start : start + _DELETED_AT_ONCE])
                except FileNotFoundError:
                    continue  # another runner was faster

    @property
    def _where(self) -> str:
        return f"s3://{self._bucket.name}/{self._bucket.prefix}"

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        errors = _obstore().exceptions
        where = self._where
        try:
            yield
        except (errors.PreconditionError, errors.AlreadyExistsError) as exc:
            raise Changed(name) from exc
        except FileNotFoundError as exc:  # obstore's own error is one of these
            self._refuse_missing_bucket(exc)
            raise
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as exc:
            raise FatalError(
                f"the S3 server refuses the keys of the connection for {where}: {_first_line(exc)}"
            ) from exc
        except errors.NotSupportedError as exc:
            raise FatalError(
                f"the S3 server of {where} cannot put an object on a condition: {_first_line(exc)}"
            ) from exc
        except (errors.BaseError, OSError) as exc:
            self._refuse_missing_bucket(exc)
            raise Disconnected(f"{where}: {_first_line(exc)}") from exc

    def _refuse_missing_bucket(self, exc: Exception) -> None:
        if "NoSuchBucket" in str(exc):
            raise FatalError(f"there is no bucket {self._bucket.name}: create it, or correct the URL") from exc


def _version(meta: Any) -> Version:
    """Return a value that changes with the content."""
    return str(meta["e_tag"] or meta["last_modified"].isoformat())


def _open(bucket: Bucket) -> "S3Store":
    from_url = {name: bucket.parameters[name] for name in _GIVEN if name in bucket.parameters}
    config: Any = from_url | {"virtual_hosted_style_request": not bucket.path_style}
    if bucket.endpoint and "region" not in config:
        config["region"] = "us-east-1"  # other servers than Amazon's have no regions
    client: Any = {
        "allow_http": bool(bucket.endpoint and bucket.endpoint.startswith("http://")),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
    }
    retries: Any = _RETRIES
    return _obstore().store.S3Store(
        bucket.name, prefix=bucket.prefix or None, config=config, client_options=client, retry_config=retries
    )


_GIVEN = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as exc:
        raise ConfigError("S3 needs the package obstore: install vitrina[lake] where the runners are") from exc
    return obstore


def _first_line(exc: BaseException) -> str:
    """Return the server's message without the XML page that follows it."""
    return (str(exc).partition("<?xml")[0].strip().splitlines() or [type(exc).__name__])[0][:300]
