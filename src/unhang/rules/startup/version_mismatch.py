"""Rule: parts of the job have versions that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.startup.start_rule import StartRule, seen

_NAMED = ("version.nccl_differs", "version.symbol_missing", "version.cuda_differs")
_DIFFERS = (
    "node-a:1:1 [0] init.cc:810 NCCL WARN Mismatched NCCL version detected : rank 0 version 21805 rank 8 version 22005"
)
_OFI = "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument"


class VersionMismatch(StartRule):
    """Two nodes run different versions of NCCL or torch, or a library was built for another one.

    What it detects:
        NCCL's own message on differing versions, a symbol of NCCL or torch that is missing when a library is loaded, nodes that print
        different versions of NCCL, or an OFI plugin that cannot register memory (error -22).

    Why it hangs:
        Two versions may choose another protocol or chunk size for the same transfer; one side then waits for bytes that never come.

    How to confirm:
        On every node: `python -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"`, and which libnccl.so is mapped
        (/proc/PID/maps).

    How to fix:
        One image or environment on all nodes; remove a second libnccl from LD_LIBRARY_PATH; for EFA a plugin that fits NCCL.

    Sources:
        NCCL src/init.cc; aws-ofi-nccl release notes (NCCL 2.19 needs the EFA installer 1.29).
    """

    id = "version-mismatch"
    cause = "version-mismatch"
    kinds = (*_NAMED, "version.ofi_register")
    confidence = 0.96
    EXAMPLES: ClassVar = (
        Fires(log_case(_DIFFERS), ()),
        Fires(log_case("ImportError: /opt/env/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"), ()),
        Fires(log_case(_OFI), ()),
        Quiet(log_case("NCCL version 2.19.3+cuda12.3\nNCCL version 2.19.3+cuda12.3"), "one version"),
        Quiet(
            log_case("NCCL error in: ProcessGroupNCCL.cpp:1727, internal error, NCCL version 2.19.3"),
            "a version is no fault",
        ),
    )
    headline = "the versions of NCCL, torch or a plugin do not fit together"
    fixes = (
        Fix(
            "One set of libraries on all nodes",
            command='python -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"   # on every node, in the job\'s environment',
            verify="every node prints the same line",
            undo="nothing is changed",
        ),
        Fix(
            "No second libnccl",
            command="grep -h libnccl /proc/PID/maps | sort -u   # of a rank; take the other one out of LD_LIBRARY_PATH and LD_PRELOAD",
            verify="one file is mapped",
            undo="restore LD_LIBRARY_PATH",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines that name it, else nodes of a failed job that print other versions."""
        return seen(s, *self.kinds) or _other_versions(s)

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Named, or inferred."""
        if any(e.kind in _NAMED for e in events):
            return self.confidence
        return 0.7

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Which versions."""
        for e in events:
            if e.kind == "version.nccl_differs":
                return f"rank {e['first_rank']} runs NCCL {_dotted(e['first'])}, rank {e['second_rank']} NCCL {_dotted(e['second'])}"
            if e.kind == "version.symbol_missing" and e["symbol"]:
                return f"a library was built for another version: {e['symbol']} is missing"
            if e.kind == "version.cuda_differs":
                return "libraries were built for different versions of CUDA"
            if e.kind == "version.ofi_register":
                return "the OFI plugin of NCCL cannot register memory (-22): plugin, libfabric and NCCL do not fit"
        told = sorted({e["version"] for e in events if e["version"]})
        return f"the nodes run different versions of NCCL: {', '.join(told)}" if told else self.headline

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """The reason, and how sure."""
        if all(e.kind == "version.nccl" for e in events):
            return "Nodes of one job that run different versions of NCCL are not supported; whether it made this job fail is inferred."
        return "All members of a communicator have to run libraries that fit together; settings do not bridge that."


def _other_versions(s: Situation) -> Sequence[LogEvent]:
    if not (s.is_hang or s.is_crash):
        return ()
    by_host: dict[str, set[str]] = {}
    events = [e for e in s.events.of("version.nccl") if e.host]
    for e in events:
        by_host.setdefault(e.host, set()).add(e["version"])
    consistent = all(len(versions) == 1 for versions in by_host.values())
    told = {next(iter(versions)) for versions in by_host.values()}
    return events if consistent and len(told) > 1 else ()


def _dotted(code: str) -> str:
    """`21805` is 2.18.5; versions before 2.9 count in hundreds."""
    if not code.isdecimal() or len(code) > 6:
        return code
    number = int(code)
    base = 10_000 if number >= 10_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"
