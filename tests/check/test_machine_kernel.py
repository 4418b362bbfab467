"""What the kernel's messages mean for a job: each pattern from its own examples, and how they are counted."""

from __future__ import annotations

from tests.logs import corpus
from unhang.check.machine import DAY_S, KernelMessage, kernel_readings, recognised
from unhang.read.logs import table


def kinds(text: str) -> list[str]:
    return [kind for kind, _ in recognised(text)]


def test_lines_are_of_their_kind_and_no_counter_example_is() -> None:
    lines = corpus.lines("machine")
    assert {line.kind for line in lines if line.is_of_kind} == {row.kind for row in table("machine/kernel")}
    assert [line for line in lines if (line.kind in kinds(line.text)) is not line.is_of_kind] == []


def test_the_lines_of_logs_are_recognised_too() -> None:
    xid = dict(recognised("NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', GPU has fallen off the bus."))
    assert xid["kernel.xid"] == {"code": "79", "bus": "0000:44:00"}
    assert kinds("Out of memory: Killed process 4242 (python) total-vm:21000000kB") == ["kernel.oom_kill"]
    assert kinds("blk_update_request: I/O error, dev sr0, sector 0") == [], "an empty drive is no broken disk"
    assert kinds("e1000e: eth0 NIC Link is Up 1000 Mbps Full Duplex") == []


def test_the_same_of_the_same_thing_is_counted_and_old_is_left_out() -> None:
    now = 3 * DAY_S
    messages = [
        KernelMessage(now - DAY_S - 60, 3, "NVRM: Xid (PCI:0000:44:00): 48, DBE"),
        KernelMessage(now - 500, 4, "mlx5_core 0000:41:00.0 ens1: Link down"),
        KernelMessage(now - 400, 4, "mlx5_core 0000:41:00.0 ens1: Link down"),
        KernelMessage(now - 90, 4, "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down"),
        KernelMessage(now - 10, 6, "usb 1-2: new device"),
    ]
    found = [(r.subject, r["name"], r["count"], r["age_s"]) for r in kernel_readings(messages, now)]
    assert found == [("kernel.link_down", "ens1", 2, 400), ("kernel.link_down", "eth0", 1, 90)]


def test_a_flood_costs_little_and_yields_little() -> None:
    flood = [KernelMessage(float(i), 3, f"NVRM: Xid (PCI:0000:{i:02x}:00): 79, lost") for i in range(200)]
    assert len(list(kernel_readings(flood, 200.0))) == 64
