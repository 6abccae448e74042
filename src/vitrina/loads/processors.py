"""Count the processors that this process may use: those it is bound to, within the quota of its control group."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
# Where version 1 mounts the controller, by distribution. With the hybrid layout, version 2 has a directory of its own.
_FIRST_VERSION = ("cpu,cpuacct", "cpuacct,cpu", "cpu")
_SECOND_VERSION = (".", "unified")


def usable(root: Path | None = None) -> int:
    """Return how many processes can compute at the same time here. Of one and a half processors, one."""
    # Not all systems report which processors a process may use.
    bound = getattr(os, "sched_getaffinity", None)
    count = len(bound(0)) if bound else os.cpu_count() or 1
    return max(min([count, *map(int, _quotas(root or _ROOT))]), 1)


def _quotas(root: Path) -> Iterator[float]:
    """Read the quotas, in processors, of this process's control group and of those that contain it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found = [_quota_of_second_version(group) for group in _groups(root, _SECOND_VERSION, path)]
        elif "cpu" in controllers.split(","):
            found = [_quota_of_first_version(group) for group in _groups(root, _FIRST_VERSION, path)]
        else:
            continue
        yield from (quota for quota in found if quota is not None)


def _groups(root: Path, mounts: tuple[str, ...], path: str) -> Iterator[Path]:
    """List the directories of a group and of those above it. A container may see its own group as the topmost."""
    # Without a namespace, the path is that of the host, and the directories below the mount do not exist.
    inside = PurePosixPath(path.lstrip("/"))
    for mount in mounts:
        top = root / "sys/fs/cgroup" / mount
        yield from (top / group for group in (inside, *inside.parents) if ".." not in group.parts)


def _quota_of_second_version(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    return _processors(quota, period)


def _quota_of_first_version(group: Path) -> float | None:
    return _processors(_text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip())


def _processors(quota: str, period: str) -> float | None:
    """Divide microseconds of processor time by those of a period. `max` and -1 mean that there is no quota."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""
