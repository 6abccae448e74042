"""`auto` is as many processes as there are processors, or as the quota of a container allows."""

import os
from pathlib import Path

import pytest

from vitrina.definition import Definition
from vitrina.loads import processors, steps


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:memory:/a\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/a\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        # The quota may be that of a group above, such as the pod's.
        ("0::/pod/runner\n", {"pod/runner/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}, 3),
        ("0::/pod/runner\n", {"pod/runner/cpu.max": "400000 100000\n", "pod/cpu.max": "max 100000\n"}, 4),
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2),
        # Version 1; in a container the path is that of the host.
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 2),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "150000\n", "cpu/docker/abc/cpu.cfs_period_us": "50000\n"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("", {}, 8),
    ],
)
def test_processors_are_counted_within_the_quota(
    tmp_path: Path, groups: str, files: dict[str, str], count: int
) -> None:
    assert processors.usable(write(tmp_path, groups, files)) == count


def test_a_system_without_control_groups_has_its_processors(tmp_path: Path) -> None:
    assert processors.usable(tmp_path) == 8


def test_auto_is_one_process_for_each_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "_ROOT", write(tmp_path, "0::/\n", {"cpu.max": "500000 100000\n"}))
    definition = {"name": "films", "source_query": "SELECT 1 AS id", "target_table": "analytics.films"}

    asked = [
        steps.workers_of(Definition.model_validate(definition | {"options": {"parallel": parallel}}))
        for parallel in ("auto", 7, 1)
    ]

    assert asked == [5, 7, 1]
