"""A network switch in user space, with faults per pair of ports: delay, loss, closed ports, an MTU, a bandwidth.

Run as a program: it makes a TAP device per node, moves it into the node's network namespace, and then obeys lines of JSON on
its stdin: `{"pair": [0, 1], "delay_ms": 20}`; `{}` takes all faults back. Each line is answered with `ok`. It ends, and its
devices with it, when stdin is closed. By itself it loses nothing.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_QUEUE_FRAMES, _FRAMES_AT_ONCE, _MOST_BYTES = 100_000, 64, 65_535
_IPV4, _TCP, _SYN, _ACK = b"\x08\x00", 6, 2, 16


@dataclass(frozen=True)
class Fault:
    """What happens to frames between two ports, either way. `ports`: TCP ports (from, to) to which nobody can connect."""

    delay_ms: float = 0.0
    drop: float = 0.0
    ports: tuple[int, int] | None = None
    max_bytes: int | None = None  # larger packets vanish
    mbytes_s: float | None = None


def mac_of(index: int) -> str:
    """The address by which the switch knows a node."""
    return f"02:00:00:00:00:{index + 1:02x}"


def closes(ports: tuple[int, int], frame: bytes) -> bool:
    """Whether a frame asks for a TCP connection to one of these ports."""
    if frame[12:14] != _IPV4 or frame[23] != _TCP:
        return False
    start = 14 + 4 * (frame[14] & 15)
    port, flags = struct.unpack_from("!H", frame, start + 2)[0], frame[start + 13]
    return bool(flags & _SYN) and not flags & _ACK and ports[0] <= int(port) <= ports[1]


class Switch:
    """Frames go where their destination says; broadcasts go to all others."""

    def __init__(self, taps: list[int]) -> None:
        self.taps = taps
        self.faults: dict[frozenset[int], Fault] = {}
        self.waiting: list[tuple[float, int, int, bytes]] = []
        self.free_at: dict[tuple[int, int], float] = {}
        self.count = 0
        self.random = random.Random(1)

    def run(self) -> None:
        """Until stdin ends."""
        selector = selectors.DefaultSelector()
        for index, tap in enumerate(self.taps):
            selector.register(tap, selectors.EVENT_READ, index)
        selector.register(0, selectors.EVENT_READ, -1)
        while True:
            limit_s = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for key, _ in selector.select(limit_s):
                if key.data >= 0:
                    self._take(key.data)
                elif not self._obey():
                    return
            self._release()

    def _obey(self) -> bool:
        line = sys.stdin.readline()
        if not line:
            return False
        order = json.loads(line)
        if "pair" in order:
            pair = frozenset(order.pop("pair"))
            ports = order.pop("ports", None)
            self.faults[pair] = Fault(**order, ports=tuple(ports) if ports else None)
        else:
            self.faults.clear()
        print("ok", flush=True)
        return True

    def _take(self, source: int) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(self.taps[source], _MOST_BYTES)
            except BlockingIOError:
                return
            target = frame[5] - 1 if not frame[0] & 1 else None
            if target is None:
                for other in range(len(self.taps)):
                    if other != source:
                        self._pass(source, other, frame)
            elif 0 <= target < len(self.taps) and target != source:
                self._pass(source, target, frame)

    def _pass(self, source: int, target: int, frame: bytes) -> None:
        fault = self.faults.get(frozenset((source, target)))
        if fault is None:
            os.write(self.taps[target], frame)
            return
        if fault.drop and self.random.random() < fault.drop:
            return
        if fault.max_bytes is not None and len(frame) - 14 > fault.max_bytes:
            return
        if fault.ports is not None and closes(fault.ports, frame):
            return
        due = time.monotonic()
        if fault.mbytes_s is not None:
            due = max(due, self.free_at.get((source, target), 0.0)) + len(frame) / fault.mbytes_s / 1e6
            self.free_at[source, target] = due
        self.count += 1
        heapq.heappush(self.waiting, (due + fault.delay_ms / 1e3, self.count, target, frame))

    def _release(self) -> None:
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, _, target, frame = heapq.heappop(self.waiting)
            os.write(self.taps[target], frame)


def open_tap(name: str, index: int, pid: int) -> int:
    """A TAP device that is `eth0` of the process's network namespace."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "netns", str(pid)], check=True)
    lines = (
        f"link set {name} name eth0 address {mac_of(index)} txqueuelen {_QUEUE_FRAMES}",
        f"address add 10.77.0.{index + 1}/24 dev eth0",
        "link set lo up",
        "link set eth0 up",
    )
    subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"], input="\n".join(lines), text=True, check=True
    )
    return tap


def main() -> None:
    """`switch.py PREFIX PID PID ...`: one node per process."""
    prefix, *pids = sys.argv[1:]
    taps = [open_tap(f"{prefix}{index}", index, int(pid)) for index, pid in enumerate(pids)]
    print("ok", flush=True)
    Switch(taps).run()


if __name__ == "__main__":
    main()
