"""Rules on what a library found where it compared the arguments of the ranks itself."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.analyze.situation import Situation
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import found_in

_OF_OPERATION, _OF_SETTING = ("op", "type", "root", "reduce", "tag"), ("crc", "env", "version", "table")


@rule("hccl-mismatch")
def hccl_mismatch(s: Situation) -> Iterator[Found]:
    """What the first parameter that differs is of: an amount, a type of data, another call, a setting. It does not tell which rank is wrong."""
    if not (events := s.events.of("hccl.unlike")):
        return
    first = events[0]
    name = first["parameter"].lower().replace("_", "").replace(" ", "")
    is_setting = any(x in name for x in _OF_SETTING)
    is_call = not is_setting and "data" not in name and any(x in name for x in _OF_OPERATION)
    words = {"parameter": first["parameter"], "local": first["local"], "remote": first["remote"]}
    words["call"] = first["op"] or first["operator"] or "a call"
    cause = "misconfigured-env" if is_setting else "code-divergence" if is_call else ""
    yield found_in(s, events, 0.93, (), words=words, cause=cause, fixes=("see",))
