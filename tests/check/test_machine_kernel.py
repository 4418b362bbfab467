"""What the kernel's messages mean for a job: each pattern from its own examples, and how they are counted."""

from __future__ import annotations

from unhang.preflight.machine_kernel import DAY_S, HOST, kernel_readings, recognised
from unhang.probe.machine_kernel_log import KernelMessage


def wrong_patterns() -> list[str]:
    """Patterns whose examples are not recognised, or whose counter-examples are."""
    wrong = []
    for pattern in HOST:
        wrong += [f"{pattern.kind} misses {text!r}" for text in pattern.examples if pattern.kind not in kinds(text)]
        wrong += [f"{pattern.kind} takes {text!r}" for text in pattern.not_examples if pattern.kind in kinds(text)]
    return wrong


def kinds(text: str) -> list[str]:
    return [kind for kind, _ in recognised(text)]


def test_patterns_do_what_their_examples_say() -> None:
    assert wrong_patterns() == []


def test_the_families_of_logs_are_recognised_too() -> None:
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
