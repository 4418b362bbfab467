"""Cores, memory and processes: what control groups of both versions leave, from recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.check.machine.limits import (
    CAP_IPC_LOCK,
    CAP_SYS_PTRACE,
    as_ranges,
    cores,
    groups_of,
    has_capability,
    limits,
    memory,
    open_files,
    processes,
    quota,
    rdma_devices,
)

MEMINFO = "MemTotal:       65843064 kB\nMemFree:         1000000 kB\nMemAvailable:   40000000 kB\nSwapFree:              0 kB\n"
GB = 1 << 30


def write(root: Path, **files: str) -> Path:
    """Files of a root folder; `__` stands for `/`, and `_DOT_` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version2(root: Path) -> Path:
    """A container of version 2, in a group of its own below one that leaves less."""
    return write(
        root,
        proc__self__cgroup="0::/pod/box\n",
        proc__meminfo=MEMINFO,
        sys__fs__cgroup__pod__cpu_DOT_max="150000 100000\n",
        sys__fs__cgroup__pod__box__cpu_DOT_max="max 100000\n",
        sys__fs__cgroup__pod__memory_DOT_max=f"{8 * GB}\n",
        sys__fs__cgroup__pod__memory_DOT_current=f"{6 * GB}\n",
        sys__fs__cgroup__pod__memory_DOT_stat=f"anon 5\ninactive_file {3 * GB}\n",
        sys__fs__cgroup__pod__box__memory_DOT_max="max\n",
        sys__fs__cgroup__pod__box__memory_DOT_current=f"{5 * GB}\n",
        sys__fs__cgroup__pod__box__pids_DOT_max="500\n",
        sys__fs__cgroup__pod__box__pids_DOT_current="120\n",
    )


def version1(root: Path) -> Path:
    """Version 1, seen from a container: the path of the host is not there, the limits are at the root of the mount."""
    return write(
        root,
        proc__self__cgroup="5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc\n1:name=systemd:/x\n",
        proc__meminfo=MEMINFO,
        sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us="400000\n",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=f"{2 * GB}\n",
        sys__fs__cgroup__memory__memory_DOT_usage_in_bytes=f"{GB}\n",
        sys__fs__cgroup__memory__memory_DOT_stat="total_inactive_file 0\n",
        sys__fs__cgroup__pids__pids_DOT_max="max\n",
        sys__fs__cgroup__pids__pids_DOT_current="9\n",
    )


def test_limits_of_version_2_come_from_every_group_above(tmp_path: Path) -> None:
    root = version2(tmp_path)
    assert [p.name for p in groups_of("cpu", root)] == ["box", "pod", "cgroup"]
    assert quota(root) == 1.5
    (found,) = memory(root)
    assert (found["limit_bytes"], found["left_bytes"], found["available_bytes"]) == (8 * GB, 5 * GB, 40_000_000 << 10)
    (found,) = processes(root)
    assert (found["most_in_group"], found["count_in_group"]) == (500, 120)


def test_limits_of_version_1_in_a_container(tmp_path: Path) -> None:
    root = version1(tmp_path)
    assert quota(root) == 4.0
    (found,) = memory(root)
    assert (found["limit_bytes"], found["left_bytes"]) == (2 * GB, GB)
    (found,) = processes(root)
    assert found["most_in_group"] is None


def test_no_limit_is_none(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        proc__self__cgroup="5:memory:/\n4:cpu:/\n",
        proc__meminfo=MEMINFO,
        sys__fs__cgroup__cpu__cpu_DOT_cfs_quota_us="-1\n",
        sys__fs__cgroup__cpu__cpu_DOT_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes="9223372036854771712\n",
        sys__fs__cgroup__memory__memory_DOT_usage_in_bytes="1\n",
    )
    assert quota(root) is None
    (found,) = memory(root)
    assert (found["limit_bytes"], found["left_bytes"]) == (None, found["available_bytes"])


def test_a_kernel_that_tells_nothing_is_an_error_not_a_zero(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        list(memory(tmp_path))
    assert quota(tmp_path) is None


def test_numbers_as_ranges() -> None:
    assert as_ranges([8, 0, 1, 2]) == "0-2,8"
    assert as_ranges([]) == ""


def test_capabilities_of_a_container_and_of_root() -> None:
    container = "Name:\tpython\nCapEff:\t00000000a80425fb\n"
    root = "CapEff:\t000001ffffffffff\n"
    assert (has_capability(CAP_SYS_PTRACE, container), has_capability(CAP_SYS_PTRACE, root)) == (False, True)
    assert (has_capability(CAP_IPC_LOCK, container), has_capability(CAP_IPC_LOCK, "")) == (False, None)


def test_only_rdma_ports_that_are_up_count(tmp_path: Path) -> None:
    base = "sys__class__infiniband__mlx5_{}__ports__1__state"
    write(tmp_path, **{base.format(0): "4: ACTIVE\n", base.format(1): "1: DOWN\n"})
    assert rdma_devices(tmp_path) == ("mlx5_0",)
    assert rdma_devices(tmp_path / "none") == ()


def test_this_machine_can_be_read() -> None:
    (found,) = cores()
    assert 1 <= (found.number("count") or 0) <= (found.number("online") or 0)
    assert [reading.subject for reading in limits()] == ["nofile", "memlock", "nproc", "core"]
    assert (open_files() or 0) >= 3
    (found,) = memory()
    assert (found.number("total_bytes") or 0) >= (found.number("available_bytes") or 0) > 0
