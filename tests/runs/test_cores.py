"""As many workers as the container may have cores: quotas of control groups count like an affinity."""

from pathlib import Path

import pytest

from neobert import processes
from neobert.processes import available_cores, quota_cores

V1 = "31 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "32 23 0:29 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def machine(folder: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """A folder with proc and sys as a machine has them."""
    others = "30 23 0:27 / /proc rw - proc proc rw\n33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    content = {"proc/self/cgroup": groups, "proc/self/mountinfo": others + mounts, **files}
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def v1(group: str, quota: int, period: int = 100_000, mount: str = "sys/fs/cgroup/cpu,cpuacct") -> dict[str, str]:
    return {f"{mount}{group}/cpu.cfs_quota_us": f"{quota}\n", f"{mount}{group}/cpu.cfs_period_us": f"{period}\n"}


def v2(group: str, quota: str) -> dict[str, str]:
    return {f"sys/fs/cgroup{group}/cpu.max": f"{quota} 100000\n"}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cores"),
    [
        ("4:cpuacct,cpu:/docker/a\n0::/\n", V1, v1("/docker/a", 50_000), 1),
        ("4:cpuacct,cpu:/docker/a\n", V1, v1("/docker/a", 150_000), 2),
        ("4:cpuacct,cpu:/docker/a\n", V1, v1("/docker/a", 600_000, 200_000), 3),
        ("4:cpuacct,cpu:/docker/a\n", V1, v1("/docker/a", -1), None),
        ("4:cpuacct,cpu:/slurm/job/step\n", V1, v1("/slurm/job/step", -1) | v1("/slurm", 250_000), 3),
        ("0::/user/run\n", V2, v2("/user/run", "max"), None),
        ("0::/user/run\n", V2, v2("/user/run", "150000"), 2),
        ("0::/user/run\n", V2, v2("/user/run", "max") | v2("/user", "400000"), 4),
        ("0::/user/run\n", V2, v2("/user/run", "300000") | v2("/user", "250000"), 3),
        ("0::/\n", V2, {}, None),
        # Inside a container the mount is its own group, whose path on the host its namespace may show or hide.
        ("0::/\n", V2, v2("", "100000"), 1),
        ("4:cpu,cpuacct:/docker/a\n", V1.replace("0:28 / ", "0:28 /docker/a "), v1("", 200_000), 2),
        ("4:cpu,cpuacct:/docker/a/b\n", V1.replace("0:28 / ", "0:28 /docker/a "), v1("/b", 100_000), 1),
        ("0::/../../other\n", V2, v2("", "100000"), 1),
        # Quotas of both versions, and a mount in another place.
        ("4:cpu,cpuacct:/a\n0::/b\n", V1 + V2, v1("/a", 300_000) | v2("/b", "200000"), 2),
        ("1:cpu:/a\n", "1 0 0:1 / /mnt/c\\040g rw - cgroup none rw,cpu\n", v1("/a", 99_999, mount="mnt/c g"), 1),
    ],
)
def test_the_tightest_quota_of_a_group_and_those_above_it_is_rounded_up(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], cores: int | None
) -> None:
    assert quota_cores(machine(tmp_path, groups, mounts, files)) == cores


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None


def test_a_quota_limits_the_cores_and_never_adds_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, cores in ((None, 8), (1, 1), (3, 3), (64, 8)):
        monkeypatch.setattr(processes, "quota_cores", lambda quota=quota: quota)
        assert available_cores() == cores
