"""Rule: ranks took a device that does not exist, or the same one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.startup.start_rule import StartRule, has_other_error, seen

_TWICE = (
    "node-a:86771:21784 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank {} and rank {} both on CUDA device 1000"
)
_ORDINAL = "RuntimeError: CUDA error: invalid device ordinal"
_STRONG = ("device.invalid_ordinal", "device.duplicate", "device.too_few")


class DeviceMapping(StartRule):
    """A rank asked for a device that is not there, or several ranks took the same device.

    What it detects:
        "invalid device ordinal" in a rank, "Duplicate GPU detected" of NCCL, or more processes than devices. The warning that a
        barrier uses GPU N "as devices used by this process are currently unknown" is no sign of it by itself.

    Why it hangs:
        The ranks without a device die in the start, and the others wait for them; NCCL refuses two ranks on one device.

    How to confirm:
        Per rank: LOCAL_RANK, CUDA_VISIBLE_DEVICES, torch.cuda.device_count(), torch.cuda.current_device().

    How to fix:
        As many processes per node as devices are visible, and `torch.cuda.set_device(LOCAL_RANK)` before the first use.

    Sources:
        NCCL src/init.cc (Duplicate GPU); torch.cuda.set_device.
    """

    id = "device-mapping"
    cause = "device-mapping"
    kinds = (*_STRONG, "device.old_invalid_usage")
    confidence = 0.97
    EXAMPLES: ClassVar = (
        Fires(log_case("\n".join(_TWICE.format(r, 0) for r in (1, 2))), (0, 1, 2)),
        Fires(log_case(f"[rank6]: Traceback (most recent call last):\n[rank6]: {_ORDINAL}"), (6,)),
        Fires(make_case({}, errors={3: f"{_ORDINAL}@main:9"}, hang=None, exit_code=1), (3,)),
        Quiet(
            log_case(
                "[W ProcessGroupNCCL.cpp:1856] [Rank 3] using GPU 3 to perform barrier as devices used by this process are currently unknown."
            ),
            "a warning that healthy jobs print",
        ),
        Quiet(
            log_case("node-a:1:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"),
            "the device of another process, hidden from this one",
        ),
    )
    fixes = (
        Fix(
            "As many processes as devices, each its own",
            patch='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))   # before init_process_group; --nproc-per-node = torch.cuda.device_count()',
            verify="each rank prints another current_device()",
            undo="revert the edit",
        ),
        Fix(
            "Tell torch the device of each rank",
            patch='dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
            verify="the warning about an unknown mapping is gone",
            undo="revert the edit",
        ),
        Fix(
            "Does not help: NCCL_P2P_DISABLE, NCCL_IB_DISABLE or a longer timeout",
            setting="leave them unset: the device was chosen before NCCL started",
            verify="the same error comes again with them",
            undo="nothing is changed",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """What names devices; NCCL 2.10 and older only say "invalid usage"."""
        strong = self.still_starting(s, seen(s, *_STRONG))
        if strong:
            return strong
        return () if has_other_error(s) else self.still_starting(s, s.events.of("device.old_invalid_usage"))

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks without a device; of shared ones all that NCCL refused."""
        told = {e.rank for e in events if e.rank is not None and e.kind != "device.duplicate"}
        pairs = [e for e in events if e.kind == "device.duplicate"]
        for e in pairs:
            told |= {n for name in ("first_rank", "second_rank") if (n := e.number(name)) is not None}
        if pairs:
            shared = {_index(e) for e in s.events.of("device.init_invalid_usage")}
            told |= {rank for rank, _ in shared if rank is not None} if len({d for _, d in shared}) == 1 else set()
        if not told and any(e.kind == "device.invalid_ordinal" for e in events):
            told = {
                r for r, x in s.case.ranks.items() if x.error is None and x.exit is not None and (x.exit.code or 0) > 0
            }
        return tuple(sorted(told))

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Old versions of NCCL do not say which usage was invalid."""
        kinds = {e.kind for e in events}
        if kinds & {"device.invalid_ordinal", "device.duplicate"}:
            return self.confidence
        if "device.too_few" in kinds:
            return 0.65 if all("no GPUs found" in e.text for e in events) else 0.9
        return 0.6

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Which ranks, which device."""
        ranks = self.culprits(s, events)
        who = w.name_ranks(ranks) if ranks else "several ranks"
        pair = next((e for e in events if e.kind == "device.duplicate"), None)
        if pair is not None:
            return f"{who} use the same device ({pair['device']})"
        if any(e.kind in _STRONG for e in events):
            return f"{who if ranks else 'a rank'} asked for a device that is not there: more processes than visible devices"
        return "NCCL refused the use of the devices (invalid usage): most often several processes on one device"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What the lines say."""
        if any(e.kind == "device.duplicate" for e in events):
            return "Every rank of a node needs a device of its own; these did not choose one by their local rank, so they all got the same."
        if any(e.kind in _STRONG for e in events):
            return "The index of the device is not below the number of devices that the process sees. Settings of NCCL have no influence on that."
        return "This version does not say what was invalid; with several processes per node it is nearly always a device used twice."


def _index(event: LogEvent) -> tuple[int | None, str]:
    return event.rank, event["device"]
