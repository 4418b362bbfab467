"""Which of the kernel's messages say that devices, buses, disks or links of this machine are in trouble."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from unhang.model import Reading
from unhang.model.readings import Value
from unhang.probe.machine_kernel_log import KernelMessage
from unhang.read.logs.families import kernel
from unhang.read.logs.patterns import Pattern

DAY_S = 86_400.0
_MOST, _MOST_TEXT = 64, 200
_FIELDS = ("code", "bus", "name", "severity", "seconds")
_REMOVABLE = re.compile(r"^(?:sr|fd|loop|zram)\d+$")

# What a log of a job never holds, as it concerns the host.
HOST = (
    Pattern(
        "kernel.hung_task",
        r"INFO: task (?P<name>.{1,40}?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
        ("blocked for more than",),
        ("INFO: task pt_main_thread:4242 blocked for more than 122 seconds.",),
    ),
    Pattern(
        "kernel.lockup",
        r"BUG: (?:soft|hard) lockup|Watchdog detected hard LOCKUP|rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stalls?",
        ("lockup", "LOCKUP", "detected"),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:99]",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
        ),
        not_examples=("EDAC MC: 8 channels detected",),
    ),
    Pattern(
        "kernel.server_lost",
        r"nfs: server (?P<name>\S+) not responding|Lustre: .{1,80}: Connection to (?P<lustre>\S+) .{0,60}was lost"
        r"|ceph: .{0,40}session lost|CIFS: VFS: .{0,60}has not responded",
        ("not responding", "was lost", "session lost", "not responded"),
        (
            "nfs: server 10.0.0.9 not responding, still trying",
            "Lustre: fs-OST0001-osc-1: Connection to fs-OST0001 (at 10.1.0.4@o2ib) was lost; in progress operations will wait",
        ),
        not_examples=("usb 1-2: device not responding to setup",),
    ),
    Pattern(
        "kernel.server_back",
        r"nfs: server (?P<name>\S+) OK|Lustre: .{1,80}: Connection restored to (?P<lustre>\S+)",
        ("nfs: server", "Connection restored"),
        ("nfs: server 10.0.0.9 OK", "Lustre: fs-OST0001-osc-1: Connection restored to fs-OST0001 (at 10.1.0.4@o2ib)"),
        not_examples=("nfs: server 10.0.0.9 not responding, still trying",),
    ),
    Pattern(
        "kernel.disk_error",
        r"(?:I/O|critical \w+) error, dev (?P<name>\w+)|(?:EXT4-fs error|BTRFS error) \(device (?P<ext>\w+)"
        r"|XFS \((?P<xfs>\w+)\): .{0,60}(?:I/O error|[Cc]orruption)|nvme (?P<nvme>\w+): I/O .{0,40}timeout"
        r"|(?P<remounted>)Remounting filesystem read-only",
        (" error, dev ", "-fs error", "BTRFS error", "XFS (", "nvme ", "Remounting"),
        (
            "blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ) flags 0x0",
            "critical medium error, dev sdb, sector 99",
            "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
            "nvme nvme0: I/O 23 QID 4 timeout, aborting",
        ),
        not_examples=("nvme nvme0: 16/0/0 default/read/poll queues", "XFS (sda1): Ending clean mount"),
    ),
    Pattern(
        "kernel.link_down",
        r"(?P<name>[\w.-]+):? (?:NIC )?[Ll]ink (?:is )?[Dd]own",
        ("ink is ", "ink down", "ink Down"),
        ("mlx5_core 0000:41:00.0 ens1f0np0: Link down", "igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down"),
        not_examples=("e1000e: eth0 NIC Link is Up 1000 Mbps", "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready"),
    ),
)
_PATTERNS = (*kernel.PATTERNS, *HOST)


def kernel_readings(messages: Iterable[KernelMessage], now_s: float) -> Iterator[Reading]:
    """One reading for all messages of the last day that say the same of the same thing: how many, and how old the last is."""
    found: dict[tuple[str, ...], dict[str, Value]] = {}
    for message in messages:
        age_s = max(0.0, now_s - message.time_s)
        if age_s > DAY_S:
            continue
        for kind, told in recognised(message.text):
            key = (kind, *(told.get(name, "") for name in ("code", "bus", "name", "severity")))
            one = found.setdefault(key, {"count": 0, **told})
            one |= {"count": int(one["count"] or 0) + 1, "age_s": round(age_s), "text": message.text[:_MOST_TEXT]}
    for key, fields in list(found.items())[-_MOST:]:
        yield Reading("machine.kernel", key[0], fields)


def recognised(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The kinds of a message, each with its named parts."""
    seen: set[str] = set()
    for pattern in _PATTERNS:
        if pattern.kind in seen or not any(anchor in text for anchor in pattern.anchors):
            continue
        if (match := pattern.compiled.search(text)) is None:
            continue
        named = {name: value for name, value in match.groupdict().items() if value}
        told = {name: named[name] for name in _FIELDS if name in named}
        if name := next((named[n] for n in ("name", "lustre", "ext", "xfs", "nvme") if n in named), ""):
            told["name"] = name
        if pattern.kind == "kernel.disk_error" and _REMOVABLE.match(name):
            continue
        seen.add(pattern.kind)
        yield pattern.kind, told
