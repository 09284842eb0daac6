"""As many workers as the container may have cores: quotas of control groups count like an affinity."""

from pathlib import Path

import pytest

from neobert import processes
from neobert.processes import available_cores, quota_cores


@pytest.mark.parametrize(
    ("groups", "quotas", "cores"),
    [
        ("0::/user/run\n", {"user/run": "max"}, None),
        ("0::/user/run\n", {"user/run": "150000"}, 2),
        ("0::/user/run\n", {"user/run": "max", "user": "400000"}, 4),
        ("0::/user/run\n", {"user/run": "300000", "user": "250000"}, 3),
        ("0::/user/run\n", {"user/run": "9999"}, 1),
        ("0::/\n", {}, None),
        ("0::/\n", {"": "100000"}, 1),  # in a container the mount is its own group
        ("4:cpu,cpuacct:/a\n0::/b\n", {"b": "200000"}, 2),
    ],
)
def test_the_tightest_quota_of_a_group_and_those_above_it_is_rounded_up(
    tmp_path: Path, groups: str, quotas: dict[str, str], cores: int | None
) -> None:
    files = {"proc/self/cgroup": groups} | {
        f"sys/fs/cgroup/{group}/cpu.max": f"{quota} 100000\n" for group, quota in quotas.items()
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert quota_cores(tmp_path) == cores


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None


def test_a_quota_limits_the_cores_and_never_adds_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, cores in ((None, 8), (1, 1), (3, 3), (64, 8)):
        monkeypatch.setattr(processes, "quota_cores", lambda quota=quota: quota)
        assert available_cores() == cores
