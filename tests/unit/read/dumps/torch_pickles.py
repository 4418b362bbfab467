"""Writes dumps as torch's C++ pickler does, and random dumps to write.

Source: torch/csrc/jit/serialization/pickler.cpp, torch 2.13: protocol 2; each text is memoised at its first use, and each
dictionary that is used twice; numbers take 1, 2, 4 or 8 bytes.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from made_dumps import ADDED, dump, entry


class TorchPickler:
    """One pickle."""

    def __init__(self, value: Any) -> None:
        self._data = bytearray(b"\x80\x02")
        self._texts: dict[str, int] = {}
        self._dicts: dict[int, int] = {}
        self._count = 0
        self._uses: Counter[int] = Counter()
        self._count_uses(value)
        self._write(value, is_shared=True)
        self.data = bytes(self._data) + b"."

    def _count_uses(self, value: Any) -> None:
        if isinstance(value, dict):
            self._uses[id(value)] += 1
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            self._count_uses(part)

    def _put(self) -> int:
        number, self._count = self._count, self._count + 1
        self._data += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)
        return number

    def _get(self, number: int) -> None:
        self._data += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def _write(self, value: Any, is_shared: bool = False) -> None:
        if isinstance(value, str):
            self._write_text(value)
        elif isinstance(value, dict):
            self._write_dict(value, is_shared or self._uses[id(value)] > 1)
        elif isinstance(value, list):
            self._data += b"]("
            for part in value:
                self._write(part)
            self._data += b"e"
        elif isinstance(value, tuple):
            for part in value:
                self._write(part)
            self._data += bytes([0x84 + len(value)])
        else:
            self._data += _scalar(value)

    def _write_text(self, text: str) -> None:
        if text in self._texts:
            self._get(self._texts[text])
            return
        encoded = text.encode("utf-8", "surrogatepass")
        self._data += b"X" + struct.pack("<I", len(encoded)) + encoded
        self._texts[text] = self._put()

    def _write_dict(self, value: dict[Any, Any], is_shared: bool) -> None:
        if id(value) in self._dicts:
            self._get(self._dicts[id(value)])
            return
        self._data += b"}("
        for key, part in value.items():
            self._write(key)
            self._write(part)
        self._data += b"u"
        if is_shared:
            self._dicts[id(value)] = self._put()


def _scalar(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def torch_pickled(made: Any) -> bytes:
    """The dump as torch writes it."""
    return TorchPickler(made).data


GROUPS = {
    "0": ("default_pg", "[0, 1, 2, 3]"),
    "7": ("undefined", "[1, 3]"),
    "tp": ("", "[]"),
    "dp": ("data", "no list"),
}
OPS = (
    "nccl:all_reduce", "nccl:coalesced", "nccl:_all_gather_base", "nccl:ALLREDUCE_coalesced", "nccl:send 0->1", "nccl:recv 1<-3",
    "gloo:all_reduce", "broadcast", "nccl:send 0->99", "send", "ucc:send 0->1",
)  # fmt: skip
TIMES = st.one_of(st.none(), st.sampled_from([1, 255, 256, 70_000, 1_795_000_000_000_000_000]))
SIZES = st.lists(st.lists(st.sampled_from([0, 1, 7, 255, 256, 65_536, 1 << 40]), max_size=3), max_size=3)


@st.composite
def call_sites(draw: st.DrawFn) -> dict[str, Any]:
    """What all calls of one line have in common."""
    lines = draw(st.lists(st.integers(0, 300), max_size=4))
    group = draw(st.sampled_from(sorted(GROUPS)))
    return {
        "frames": [FRAMES[line] for line in lines],
        "profiling_name": draw(st.sampled_from(OPS)),
        "process_group": (group, GROUPS[group][0]),
        "pg_id": sorted(GROUPS).index(group),
        "input_sizes": draw(SIZES),
        "output_sizes": draw(SIZES),
        "input_dtypes": draw(st.lists(st.sampled_from(["Float", "Half", "Long"]), max_size=3)),
        "thread_name": draw(st.sampled_from(["main", "pt_autograd_0", ""])),
    }


FRAMES = [{"name": f"f{i % 7}", "filename": f"/home/me/part{i % 5}.py", "line": i} for i in range(301)]


@st.composite
def regular_dumps(draw: st.DrawFn, most: int = 40, times: int = 1) -> dict[str, Any]:
    """A dump as torch makes it, of some version, with any states; its calls are made `times` times."""
    minor = draw(st.sampled_from([3, 4, 5, 10]))
    sites = draw(st.lists(call_sites(), min_size=1, max_size=4))
    first = draw(st.sampled_from([0, 0, 3, 250, 65_530]))
    steps = st.tuples(
        st.integers(0, len(sites) - 1), st.sampled_from(["scheduled", "started", "completed"]), st.booleans(), TIMES, TIMES,
        st.integers(0, 2),
    )  # fmt: skip
    entries = []
    for i, (site, state, retired, started, completed, batch) in enumerate(
        draw(st.lists(steps, min_size=1, max_size=most)) * times
    ):
        made = entry(first + i, minor=minor, **sites[site])
        made |= {"state": state, "retired": retired, "time_discovered_started_ns": started}
        made |= {"time_discovered_completed_ns": completed, "collective_seq_id": first + i // 3, "p2p_seq_id": batch}
        if minor >= 3:
            made["is_p2p"] = "send" in made["profiling_name"] or "recv" in made["profiling_name"]
        entries.append({k: v for k, v in made.items() if ADDED.get(k, 0) <= minor})
    return _around(draw, entries, minor)


def _around(draw: st.DrawFn, entries: list[Any], minor: int) -> dict[str, Any]:
    config = {name: {"name": name, "desc": desc, "ranks": ranks} for name, (desc, ranks) in GROUPS.items()}
    numbers = st.integers(-1, 50)
    status = {
        str(i): dict(zip(STATUS, draw(st.tuples(numbers, numbers, numbers)), strict=True))
        for i in draw(st.sets(st.integers(0, 4), max_size=4))
    }
    made = dump(entries, minor=minor, pg_config=config, pg_status=status)
    return {k: made[k] for k in ("version", "pg_config", "pg_status", "entries")}


STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-5, (1 << 63) - 1), st.just("\ud800"), st.just("é" * 600), st.lists(st.none())
)


@st.composite
def odd_dumps(draw: st.DrawFn) -> dict[str, Any]:
    """A dump with a few fields of other types, or missing, or entries out of order."""
    made = draw(regular_dumps(12))
    for i, name, value in draw(
        st.lists(st.tuples(st.integers(0, 11), st.sampled_from([*entry(0), "other"]), ODD), max_size=3)
    ):
        if i < len(made["entries"]):
            if value is None and name != "record_id":
                made["entries"][i].pop(name, None)
            else:
                made["entries"][i][name] = value
    if draw(st.booleans()):
        made["entries"] = draw(st.permutations(made["entries"]))
    return made
