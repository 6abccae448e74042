"""Store objects as files of a folder. One process replaces an object at a time; readers never see partial content."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from vitrina.connectors.files.objects import Changed, Listed, Stored, Version
from vitrina.errors import CannotConnect, Disconnected, FatalError

# Prefix of a file that is being written; the name of an object never begins like this.
UNFINISHED = ".unfinished-"
_LOCK = ".lock"
# The holder of the lock writes one small file, so after this time it must have been stopped in the middle.
LOCK_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.02


class FolderObjects:
    """Access the objects in a folder. It must exist, so that an unmounted folder is not mistaken for an empty one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> Stored | None:
        self._require_folder()
        with _translated(name), suppress(FileNotFoundError):
            content = (self._folder / name).read_bytes()
            return Stored(content, _version(content))
        return None

    def get(self, name: str) -> bytes:
        with _translated(name):
            return (self._folder / name).read_bytes()

    def put(self, name: str, content: memoryview) -> None:
        self._require_folder()
        with _translated(name):
            self._write(name, content)

    def replace(self, name: str, content: bytes, expected: Version | None) -> None:
        self._require_folder()
        with _translated(name):
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            with self._locked((self._folder / name).parent / _LOCK):
                found = self.find(name)
                if (found.version if found else None) != expected:
                    raise Changed(name)
                self._write(name, memoryview(content))

    def list(self, prefix: str) -> Iterator[Listed]:
        with _translated(prefix):
            for folder, _, files in os.walk(self._folder / prefix):
                for file in files:
                    path = Path(folder, file)
                    with suppress(FileNotFoundError):  # another process is removing it
                        about = path.stat()
                        name = path.relative_to(self._folder).as_posix()
                        yield Listed(name, about.st_size, about.st_mtime)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with _translated(name):
                path = self._folder / name
                path.unlink(missing_ok=True)
                self._remove_empty(path.parent)

    def _remove_empty(self, folder: Path) -> None:
        """Remove folders that held only this object. A writer that needs one now creates it again."""
        with suppress(OSError):
            while folder != self._folder:
                folder.rmdir()
                folder = folder.parent

    def _write(self, name: str, content: memoryview) -> None:
        """Write to a temporary file, then rename it, so that a killed runner leaves no partial object."""
        path = self._folder / name
        for _ in range(3):
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process removed the empty folder in between
                self._write_aside(path, content)
                return
        raise Disconnected(f"{path.parent} is removed again and again while it is written to")

    def _write_aside(self, path: Path, content: memoryview) -> None:
        aside = path.with_name(f"{UNFINISHED}{path.name}-{token_hex(4)}")
        try:
            with aside.open("xb") as written:
                written.write(content)
                written.flush()
                os.fsync(written.fileno())
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    @contextmanager
    def _locked(self, lock: Path) -> Iterator[None]:
        with lock.open("a") as held:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > deadline:
                    raise Disconnected(f"{lock} has been locked for {LOCK_SECONDS:.0f} seconds: see who holds it")
                time.sleep(_LOOK_AGAIN_SECONDS)
            yield

    def _require_folder(self) -> None:
        if not self._folder.is_dir():
            raise CannotConnect(f"{self._folder} is no folder: make it, for the login of the runners, or mount it")


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as exc:
        raise FatalError(f"{exc.filename or name} may not be written by the login of the runner") from exc
    except OSError as exc:
        raise Disconnected(f"{exc.filename or name}: {exc.strerror or exc}") from exc


def _version(content: bytes) -> Version:
    return sha256(content).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Sync the folder, without which the name of a file may not survive a crash."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
