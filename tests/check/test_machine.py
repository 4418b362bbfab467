"""The area `machine` against real faults: each is made in a child with namespaces, limits and groups of its own."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.check.forked import forked
from tests.slowness import slowness
from unhang.check import machine
from unhang.check import machine as kernel_log
from unhang.check.areas import CheckOptions
from unhang.check.checking import check
from unhang.check.machine import KernelMessage
from unhang.model import Reading
from unhang.rules.registry import all_rules

_NEW_MOUNTS, _READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE = 0x20000, 1, 32, 0x4000, 1 << 18
_LIMIT_S = 40.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel of Linux")
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


# What kernels say of machines on which nothing is wrong.
HEALTHY = tuple(
    KernelMessage(float(i), 4, text)
    for i, text in enumerate(
        (
            "EDAC MC: Ver: 3.0.0",
            "pcieport 0000:00:03.0: AER: enabled with IRQ 24",
            "nvme nvme0: 16/0/0 default/read/poll queues",
            "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
            "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down",
            "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Up 1000 Mbps Full Duplex",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
            "mce: CPU0: Thermal monitoring enabled (TM1)",
            "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
        )
    )
)


def nothing() -> None:
    """No fault."""


def checked(
    options: CheckOptions, fault: Callable[[], None] = nothing, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a check in a child finds after `fault` was done there: rule -> title and confidence; verdicts, and readings."""
    all_rules()

    def act() -> dict[str, Any]:
        fault()
        result = check(options, environ or {}, lambda text: None)
        assert result.diagnosis is not None
        return {
            "found": {f.rule: [f.title, f.confidence] for f in result.diagnosis.findings},
            "verdicts": {o.rule: [o.verdict, o.reason] for o in result.diagnosis.outcomes},
            "code": result.exit_code,
            "readings": [[r.kind, r.subject, dict(r.fields)] for r in result.case.readings],
        }

    answer: dict[str, Any] = forked(act, _LIMIT_S)
    return answer


def of(plan: str = "", *folders: Path) -> CheckOptions:
    """Options for this area alone."""
    return CheckOptions(
        areas=("machine",), plan=dict(p.split("=") for p in plan.split(",") if p), folders=tuple(folders)
    )


def mount(folder: Path | str, options: str) -> None:
    """A file system in memory, which only this process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) or libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")


def test_a_healthy_machine_gives_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "kernel_messages", lambda: HEALTHY)
    answer = checked(of("", tmp_path))
    assert set(answer["found"]) <= {"no-tracing"}, "a container may forbid it"
    assert answer["code"] == bool(answer["found"])
    judged = {rule for rule, (verdict, _) in answer["verdicts"].items() if verdict == "pass"}
    assert judged >= {"few-cores", "little-memory", "shm-forecast", "descriptor-limit", "folder-unusable", "clock-jump"}
    verdict, reason = answer["verdicts"]["clock-skew"]
    assert verdict == "skipped"
    assert "one process" in reason
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_fits_gives_no_finding() -> None:
    plan = "gpus=8,workers=6,threads=1,batch=16M,cores=64,memory=1T,shm=64G,nofile=65536"
    assert checked(of(plan))["found"] == {}


def test_a_plan_that_does_not_fit_is_named_thing_by_thing() -> None:
    found = checked(of("gpus=8,workers=6,batch=16M,cores=16,memory=2G,shm=64M,nofile=96"))["found"]
    assert set(found) == {"few-cores", "little-memory", "shm-forecast", "descriptor-limit"}
    assert found["few-cores"][0] == "8 x (1 thread + 6 workers) share 16 cores in the plan"
    assert "in the plan" in found["shm-forecast"][0]
    assert found["shm-forecast"][1] >= 0.9
    assert found["little-memory"][1] >= 0.9


@needs_mounts
def test_a_small_shared_memory_is_found_where_workers_are_planned() -> None:
    def shrink() -> None:
        mount("/dev/shm", "size=1m")

    found = checked(of("ranks=2,workers=4,batch=4M"), shrink)["found"]
    assert found["shm-forecast"] == [
        "/dev/shm on " + os.uname().nodename + " has 1.05 MB free; 2 ranks with 4 workers each, 10 batches of 4.19 MB "
        "each, need 83.9 MB",
        0.93,
    ]
    assert "shm-forecast" not in checked(of(), shrink)["found"], "nobody said that there are workers"


def test_a_low_limit_of_files_is_found() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    title, confidence = checked(of("ranks=2,workers=16"), lower)["found"]["descriptor-limit"]
    assert title.startswith("a process may open 128 files")
    assert confidence >= 0.9
    assert checked(of(), lower)["found"] == {}, "enough for one process without workers"


@needs_mounts
def test_a_full_and_a_read_only_folder_are_found(tmp_path: Path) -> None:
    def fill() -> None:
        mount(tmp_path, "size=1m")
        (tmp_path / "full").write_bytes(b"x" * (1 << 20))

    def protect() -> None:
        mount(tmp_path, "size=64m")
        assert ctypes.CDLL(None).mount(b"none", str(tmp_path).encode(), None, _REMOUNT | _READ_ONLY, None) == 0

    def few_names() -> None:
        mount(tmp_path, "size=2g,nr_inodes=20")

    assert checked(of("", tmp_path), fill)["found"]["folder-unusable"][0].startswith(
        f"{tmp_path} is full (0 bytes free)"
    )
    assert "mounted read-only" in checked(of("", tmp_path), protect)["found"]["folder-unusable"][0]
    assert "more files only (inodes)" in checked(of("", tmp_path), few_names)["found"]["folder-unusable"][0]


def test_a_folder_that_does_not_answer_is_named_and_costs_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "dead")
    real = os.path.lexists

    def stuck(path: str) -> bool:
        if str(path) == str(tmp_path):
            os.open(tmp_path / "dead", os.O_RDONLY)  # waits in the kernel, as a mount whose server is gone
        return real(path)

    monkeypatch.setattr("unhang.check.machine.folders.limited", forked)
    monkeypatch.setattr("unhang.check.machine.folders.LIMIT_S", slowness())
    monkeypatch.setattr("unhang.check.machine.folders._is_busy", lambda: False)
    monkeypatch.setattr("unhang.check.machine.folders.os.path.lexists", stuck)
    answer = checked(of("", tmp_path))
    assert set(answer["found"]) == {"folder-hangs"}
    assert answer["found"]["folder-hangs"][0].startswith(f"the file system of {tmp_path} does not answer")


@pytest.fixture
def groups() -> Iterator[Callable[[str, Mapping[str, str]], Path]]:
    """Makes control groups of version 1 with limits, and removes them."""
    made: list[Path] = []

    def make(controller: str, files: Mapping[str, str]) -> Path:
        folder = Path("/sys/fs/cgroup") / controller / f"unhang-test-{os.getpid()}"
        try:
            folder.mkdir()
            made.append(folder)
            for name, value in files.items():
                (folder / name).write_text(value)
        except OSError as error:
            pytest.skip(f"no control group can be made: {error}")
        return folder

    yield make
    for folder in made:
        with suppress(OSError):
            folder.rmdir()


def test_the_limits_of_a_container_are_found(groups: Callable[[str, Mapping[str, str]], Path]) -> None:
    folders = [
        groups("memory", {"memory.limit_in_bytes": str(600 << 20)}),
        groups("pids", {"pids.max": "60"}),
        groups("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}),
    ]

    def enter() -> None:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    answer = checked(of("ranks=4,workers=2"), enter)
    assert set(answer["found"]) == {"little-memory", "process-limit", "few-cores"}
    assert "share 1 core on" in answer["found"]["few-cores"][0]
    assert answer["found"]["process-limit"][0].startswith("pids.max of the container leaves room for 5")
    assert answer["found"]["little-memory"][1] >= 0.9


def test_what_cannot_be_read_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[()]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel_log, "kernel_messages", refuse)
    verdict, reason = checked(of())["verdicts"]["kernel-device-error"]
    assert verdict == "skipped"
    assert "Operation not permitted" in reason


def test_one_rank_reads_for_its_host() -> None:
    """The others tell only what is their own: cores and limits."""
    from unhang.check.areas import Context, Member, Participants

    member = Member(rank=1, world_size=2, local_rank=1)
    facts = list(machine.probe(Context(Participants(member), CheckOptions(), {})))
    assert {f.kind for f in facts if isinstance(f, Reading)} == {"machine.cores", "machine.limit"}
