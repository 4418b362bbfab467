"""The area `devices`, from a binding of NVML in memory to the findings of all rules."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from tests.check.fake_nvml import CARD, FakeNvml
from tests.check.forked import forked
from unhang.check import devices as area
from unhang.check import devices as probe
from unhang.check.areas import CheckOptions, Context, Member, Participants
from unhang.check.checking import check, judged, setup_of
from unhang.model import Case, Finding, Job, RankEvidence, RankIdentity, Reading, Unavailable
from unhang.rules.registry import all_rules

ONLY = CheckOptions(areas=("devices",))
_BRIDGES = {"redirecting": "0000:02:04.0", "iommu": "identity", "is_virtual": False}


@pytest.fixture(autouse=True)
def no_pci(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buses of the devices in the table are not those of this machine."""
    all_rules()
    monkeypatch.setattr(area, "between", lambda buses: {"redirecting": "", "iommu": None, "is_virtual": False})


def use(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, nvml))
    monkeypatch.setattr(area, "limited", forked)


def found_alone(
    options: CheckOptions = ONLY, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Finding], int]:
    """The findings of a check as one process, by rule, and its exit code."""
    checked = check(options, environ or {}, lambda text: None)
    assert checked.diagnosis is not None
    assert [o for o in checked.diagnosis.outcomes if o.verdict == "error"] == []
    return {f.rule: f for f in checked.diagnosis.findings}, checked.exit_code


def eight(**faults: Mapping[str, Any]) -> FakeNvml:
    """Eight devices; `gpu3={...}` changes one."""
    return FakeNvml(*[faults.get(f"gpu{i}", {}) for i in range(8)])


def test_eight_healthy_devices_give_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, eight())
    checked = check(ONLY, {}, lambda text: None)
    assert checked.diagnosis is not None
    assert checked.diagnosis.findings == ()
    assert checked.exit_code == 0
    passed = {o.rule for o in checked.diagnosis.outcomes if o.verdict == "pass"}
    assert passed >= {
        "device-unhealthy",
        "device-slowed",
        "nvlink-down",
        "pcie-narrow",
        "fabric-not-ready",
        "p2p-redirected",
    }
    kinds = [r.kind for r in checked.case.readings]
    assert kinds.count("devices.device") == 8


def test_cards_of_a_desktop_give_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml({**CARD, "memory": (24 << 30, 2 << 30), "processes": [(1, 90 << 20)]}, CARD))
    assert found_alone() == ({}, 0)


@pytest.mark.parametrize(
    ("fault", "rule", "words", "is_wrong"),
    [
        ({"lost": True}, "device-unhealthy", "cannot be reached", True),
        ({"lost_later": True}, "device-unhealthy", "cannot be reached", True),
        ({"ecc": 4}, "device-unhealthy", "uncorrectable ECC", True),
        ({"rows": (0, 1, 0, 1)}, "device-unhealthy", "could not replace", True),
        ({"rows": (0, 1, 1, 0)}, "device-unhealthy", "next reset", False),
        ({"reasons": 0x88}, "device-slowed", "power brake", False),
        ({"reasons": 0x48}, "device-slowed", "hardware thermal", False),
        ({"reasons": 0x8}, "device-slowed", "hardware slowdown", False),
        ({"temperature": 90}, "device-slowed", "90 degrees", False),
        ({"links": 16}, "nvlink-down", "has 16 NVLinks up, not 18", True),
        ({"recoveries": 2}, "nvlink-down", "retrained", False),
        ({"width": 4}, "pcie-narrow", "has 4 lanes, not 16", False),
        ({"fabric": (2, 0)}, "fabric-not-ready", "in progress", True),
        ({"fabric": (3, 999)}, "fabric-not-ready", "error 999", True),
        ({"memory": (80 << 30, 70 << 30)}, "device-occupied", "already in use", False),
        ({"processes": [(2**22 + 1, 5 << 30)]}, "device-occupied", f"by process {2**22 + 1}", False),
        ({"mode": 2}, "device-occupied", "prohibited", True),
        ({"name": "NVIDIA A100", "links": 12}, "devices-unlike", "A100", False),
    ],
)
def test_each_fault_of_one_device_is_named(
    monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], rule: str, words: str, is_wrong: bool
) -> None:
    use(monkeypatch, eight(gpu3=fault))
    found, code = found_alone()
    assert set(found) == {rule}
    assert words in found[rule].title
    assert "GPU 3" in found[rule].title
    assert (found[rule].severity == "wrong") is is_wrong
    assert code == 1


def test_a_power_limit_and_idle_devices_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, eight(gpu1={"reasons": 0x4}, gpu2={"reasons": 0x2}))
    assert found_alone()[0] == {}


def test_a_driver_that_does_not_answer_is_a_finding_and_does_not_hold_up_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "_ASK_LIMIT_S", 0.2)
    use(monkeypatch, FakeNvml({}, hangs=True))
    found, _ = found_alone()
    assert set(found) == {"driver-silent"}
    assert found["driver-silent"].severity == "wrong"


@pytest.mark.parametrize(
    ("value", "rules"), [(18, {"driver-silent"}), (999, {"driver-silent"}), (9, set()), (12, set()), (4, set())]
)
def test_errors_of_the_driver(monkeypatch: pytest.MonkeyPatch, value: int, rules: set[str]) -> None:
    use(monkeypatch, FakeNvml({}, init_error=FakeNvml.NVMLError(value, "told")))
    checked = check(ONLY, {}, lambda text: None)
    assert checked.diagnosis is not None
    assert {f.rule for f in checked.diagnosis.findings} == rules
    verdicts = {o.rule: o for o in checked.diagnosis.outcomes}
    assert verdicts["device-unhealthy"].verdict == "skipped"
    assert "told" in verdicts["device-unhealthy"].reason


def test_without_a_binding_the_rules_are_skipped_and_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent() -> Any:
        raise ImportError("pynvml")

    monkeypatch.setattr(area, "devices", partial(probe.devices, loads=absent))
    monkeypatch.setattr(probe, "DRIVER", tmp_path)
    checked = check(ONLY, {}, lambda text: None)
    assert [a.reason for a in checked.case.absent if a.what == "devices"] == [
        "the driver is here, nvidia-ml-py is not: pip install 'unhang[gpu]'"
    ]
    assert checked.diagnosis is not None
    verdicts = {o.rule: o.verdict for o in checked.diagnosis.outcomes}
    assert {verdicts["device-unhealthy"], verdicts["too-few-devices"], verdicts["driver-silent"]} == {"skipped"}


def test_direct_transfers_through_bridges_that_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(*[{"links": None, "p2p": {0: 0, 2: 5}, "near": 10}] * 4))
    monkeypatch.setattr(area, "between", lambda buses: _BRIDGES)
    assert set(found_alone()[0]) == {"p2p-redirected"}
    monkeypatch.setattr(area, "between", lambda buses: {**_BRIDGES, "is_virtual": True})
    assert found_alone()[0] == {}
    use(monkeypatch, eight())
    monkeypatch.setattr(area, "between", lambda buses: {**_BRIDGES, "iommu": "DMA-FQ"})
    assert found_alone()[0] == {}, "all pairs have NVLink"


def test_a_plan_with_more_devices_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml({}, {}))
    found, _ = found_alone(replace(ONLY, plan={"gpus": "8", "nodes": "2"}))
    assert set(found) == {"too-few-devices"}
    assert "the plan has 8 devices on each node" in found["too-few-devices"].title
    assert found_alone(replace(ONLY, plan={"gpus": "2", "nodes": "2"}))[0] == {}


def test_a_list_of_devices_with_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml({}, {}))
    found, _ = found_alone(environ={"CUDA_VISIBLE_DEVICES": "0,5"})
    assert set(found) == {"visible-devices-wrong"}
    assert "CUDA_VISIBLE_DEVICES=0,5" in found["visible-devices-wrong"].title


def of_ranks(*job: Any, **options: Any) -> dict[str, tuple[int, ...]]:
    """Rule -> culprits of such a job."""
    return {f.rule: f.culprit_ranks for f in found_on(*job, **options)}


def found_on(
    nvml: FakeNvml | Sequence[FakeNvml], environs: Sequence[Mapping[str, str]], backend: str = "", per_host: int = 8
) -> tuple[Finding, ...]:
    """The findings on a job whose ranks have these environments; ranks see one table, or each its own."""
    found: list[Reading] = []
    world = len(environs)
    for rank, environ in enumerate(environs):
        local = rank % per_host
        member = Member(rank, world, local, min(world, per_host), host=f"node{rank // per_host}")
        table = nvml if isinstance(nvml, FakeNvml) else nvml[rank]
        options = replace(ONLY, backend=backend)
        context = Context(Participants(member, None, (rank,)), options, environ)
        one = probe.nvidia(partial(copy, table), area.in_detail(member), 0)
        read = [*setup_of(context), *area.readings(probe.Devices("nvidia", **one), context)]
        found += [replace(r, rank=rank, host=member.host) for r in read if not isinstance(r, Unavailable)]
    ranks = {r: RankEvidence(RankIdentity(r, world, r % per_host, host=f"node{r // per_host}")) for r in range(world)}
    diagnosis = judged(Case(job=Job(world_size=world, nodes=1), ranks=ranks, readings=tuple(found)))
    assert [o for o in diagnosis.outcomes if o.verdict == "error"] == []
    return diagnosis.findings


def test_a_fault_is_charged_to_the_rank_that_uses_the_device() -> None:
    assert of_ranks(eight(gpu3={"ecc": 1}), [{}] * 8) == {"device-unhealthy": (3,)}
    assert of_ranks(eight(), [{}] * 8) == {}


def test_two_ranks_that_are_given_the_same_device() -> None:
    environs = [{"CUDA_VISIBLE_DEVICES": value} for value in ("0", "1", "1", "3")]
    found = of_ranks(eight(), environs)
    assert found["shared-device"] == (1, 2)
    assert set(found) == {"shared-device", "devices-hidden"}


def test_a_device_named_by_number_and_by_uuid_is_the_same() -> None:
    environs = [{"CUDA_VISIBLE_DEVICES": value} for value in ("1", "GPU-00000001")]
    assert of_ranks(eight(), environs)["shared-device"] == (0, 1)


def test_a_job_on_gloo_may_share_devices() -> None:
    assert of_ranks(FakeNvml({}), [{}] * 4, backend="gloo") == {}
    assert of_ranks(FakeNvml({}, {}), [{}] * 4) == {"too-few-devices": (2, 3)}
    assert of_ranks(FakeNvml({}), [{}] * 2) == {"shared-device": (0, 1)}
    assert [f.severity for f in found_on(FakeNvml({}), [{}] * 2)] == ["doubtful"], "perhaps they use none"
    assert [f.severity for f in found_on(FakeNvml({}), [{}] * 2, "nccl")] == ["wrong"]


def test_of_two_devices_nobody_knows_which_is_the_odd_one() -> None:
    assert of_ranks(FakeNvml({"width": 8}, {}), [{}] * 2) == {}
    assert of_ranks(FakeNvml({"width": 8}, {"width": 8}, {}, {}), [{}] * 4) == {}


def test_tasks_that_see_one_device_each_by_the_scheduler_are_fine() -> None:
    tables = [FakeNvml({"uuid": f"GPU-{rank}"}) for rank in range(4)]
    assert of_ranks(tables, [{"CUDA_VISIBLE_DEVICES": "0"}] * 4) == {}
    faulty = [FakeNvml({"uuid": f"GPU-{rank}", "ecc": int(rank == 2)}) for rank in range(4)]
    assert of_ranks(faulty, [{"CUDA_VISIBLE_DEVICES": "0"}] * 4) == {"device-unhealthy": (2,)}


def test_one_host_with_fewer_devices_and_slices() -> None:
    tables = [FakeNvml(*[{}] * (7 if rank == 1 else 8)) for rank in range(3)]
    assert of_ranks(tables, [{}] * 3, per_host=1) == {"devices-unlike": (1,)}
    assert of_ranks(FakeNvml({"mig": [1, 1]}, {}), [{}] * 2) == {"mig-mode": (0,)}
