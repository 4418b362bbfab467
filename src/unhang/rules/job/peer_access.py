"""The rule on processes of a node that cannot map the memory of each other's devices: hidden, without a path, or by a way that a variable forces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import found_in, still_starting, sure_beside

# A process that tells which device it uses, by the number that it has for that process itself.
_OWN_DEVICE = lazy_pattern(
    r"\b(?:gpu_id|gpu|device_id|cuda_device|device) ?[=:] ?(?:cuda:)?(\d{1,2})\b(?! ?/)|\bcuda:(\d{1,2})\b"
    r"|\b[Ss]et(?:ting)? (?:the )?(?:cuda |CUDA )?device (?:to )?(?:cuda:)?(\d{1,2})\b"
)
_MOST_CHARS, _TWO = 300, 2


@rule("gpu-visibility-isolation")
def gpu_visibility(s: Situation) -> Iterator[Found]:
    """An IPC handle may fail to open for other reasons too; devices that the processes number unlike are all visible, and have no path."""
    events = still_starting(s, s.events.of("device.no_peer_access", "device.peer_not_visible", "device.ipc_failed"))
    if not events:
        return
    kinds = {e.kind for e in events}
    confidence = sure_beside(s, 0.8 if kinds == {"device.ipc_failed"} else 0.95)
    if forced := _by_the_old_way(s, events):
        yield found_in(
            s,
            [*forced[:1], *events],
            confidence,
            (),
            words={"name": forced[0]["name"]},
            say="forced",
            cause="misconfigured-env",
            fixes=("old way", "visible"),
        )
    elif kinds == {"device.no_peer_access"} and len(_own_devices(s, events[0])) >= _TWO:
        yield found_in(s, events, confidence, (), say="no path", cause="p2p-acs-iommu", fixes=("no path",))
    else:
        yield found_in(s, events, confidence, (), fixes=("visible", "no path"))


def _by_the_old_way(s: Situation, events: Sequence[LogEvent]) -> Sequence[LogEvent]:
    """What NCCL says of the variable that keeps it off memory with handles of files, where the handles of CUDA's IPC were refused to it."""
    if any(e.kind != "device.ipc_failed" for e in events):
        return ()
    told = s.events.of("environment.nccl_set")
    return [e for e in told if e["name"] == "NCCL_CUMEM_ENABLE" and e["value"] == "0" and e.order < events[0].order]


def _own_devices(s: Situation, event: LogEvent) -> set[str]:
    """The numbers of the devices that processes call their own before a line. A process that sees one device alone calls it 0."""
    lines = s.case.log[: event.order]
    return {next(filter(None, m.groups())) for x in lines if (m := _OWN_DEVICE.search(x.text[:_MOST_CHARS]))}
