"""Choose the account for the embedded PostgreSQL, which refuses to run as root."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vitrina.errors import ConfigError

# The first exists on nearly every Linux; some minimal images have only the second.
UNPRIVILEGED = ("nobody", "daemon")

_INSTEAD = "start Vitrina as a normal user, or set VITRINA_DATABASE_URL to a database of your own"


@dataclass(frozen=True)
class Account:
    """Hold the account that the server runs as: our own, or another one if we are root."""

    uid: int
    gid: int
    is_other: bool

    def run(self, command: Sequence[str | Path], *, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            cwd="/",
            env=clean_environment(),
            user=self.uid if self.is_other else None,
            group=self.gid if self.is_other else None,
            extra_groups=[] if self.is_other else None,
        )

    def run_in_background(self, command: Sequence[str | Path], log: IO[bytes]) -> int:
        """Start a program in its own session that is not our child, and return its pid.

        In its own session, a Ctrl-C in the terminal does not reach it; we may need the database while we clean up.
        """
        started = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
            cwd="/",
            env=clean_environment(),
            start_new_session=True,
            user=self.uid if self.is_other else None,
            group=self.gid if self.is_other else None,
            extra_groups=[] if self.is_other else None,
        )
        return int(started.stdout)

    def can_enter(self, directory: Path) -> bool:
        """Ask the kernel instead of computing it, because ACLs and mount options count too."""
        if not self.is_other:
            return os.access(directory, os.X_OK)
        return self.run(["/bin/sh", "-c", 'cd -- "$1"', "sh", directory]).returncode == 0

    def own(self, path: Path) -> None:
        if self.is_other:
            os.chown(path, self.uid, self.gid)


def server_account(data: Path) -> Account:
    """Choose our own account, or for root the owner of existing data, or an unprivileged account for new data."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), is_other=False)
    if data.exists() and data.stat().st_uid != 0:
        return Account(data.stat().st_uid, data.stat().st_gid, is_other=True)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, is_other=True)
    missing = UNPRIVILEGED[0]
    raise ConfigError(f"PostgreSQL does not run as root, and there is no account {missing!r} to run it as: {_INSTEAD}")


def check_account(account: Account) -> None:
    """Check that the account can be used; root in a container may not be able to switch to it."""
    try:
        account.run(["/bin/sh", "-c", ":"])
    except OSError as exc:
        raise ConfigError(
            f"PostgreSQL does not run as root, and uid {account.uid} cannot be used here ({exc.strerror}): {_INSTEAD}"
        ) from exc


def give_to_owner(path: Path) -> None:
    """Give a file of root to the owner of its directory, who can then continue without root."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def clean_environment() -> dict[str, str]:
    """Remove variables such as PGDATA or PGPORT, which would redirect the server, and make its messages English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}
