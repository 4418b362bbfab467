"""Rules on NCCL, its plugins and torch as libraries: their own checks that fail, and versions that do not fit together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from unhang.analyze.lines.first_errors import errors_of
from unhang.analyze.program.source import frame_at
from unhang.analyze.program.trees import program_nodes
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Frame, LogEvent, RankEvidence
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.failure import first_exception, in_trouble, somebody_died
from unhang.rules.job.device import SHM_FAILED, SHM_NAMED, SHM_SIGNALS
from unhang.rules.log_lines import found_in, not_outlived, sure_beside

_VERSION = lazy_pattern(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_OF_A_CAPTURE = lazy_pattern(r"capture|cuda_?graph", re.IGNORECASE)
_OF_NCCL = lazy_pattern(r"DistBackendError|NCCL error|nccl\w*Error")
_INVALID = lazy_pattern(r"Cuda failure (?:\d+ )?'(?:invalid argument|operation not (?:permitted|supported).{0,40})'")
_TWO = 2


@rule("nccl-or-library-bug")
def nccl_or_library_bug(s: Situation) -> Found | None:
    """Failed checks; those with a fallback only beside an error of NCCL, and none where something else came first. Else what NCCL refuses in a capture."""
    return _failed_check(s) or _refused_in_capture(s)


def _refused_in_capture(s: Situation) -> Found | None:
    """CUDA refuses what NCCL itself asks of it, on several ranks alike, while they capture a graph: no argument of the program's, and no lack of memory."""
    errors = [e for e in errors_of(s) if _OF_NCCL.search(e.text) and _INVALID.search(e.text)]
    captured = [e for e in errors if any(_OF_A_CAPTURE.search(f.function) for f in e.frames)]
    is_first = bool(captured) and not any(e.kind == "primary" and e.order < captured[0].order for e in errors_of(s))
    if len(captured) < _TWO or not is_first or s.events.has("environment.nccl_set", "device.") or not s.is_crash:
        return None
    told = _VERSION.search(captured[0].text)
    version = f" {told[1]}" if told else ""
    lines = [
        EvidenceLine(f"log:{e.source.line}", e.text.replace("\n", " ")[:300], e.source.line) for e in captured[:_TWO]
    ]
    return Found(0.66, (), lines, {"version": version}, "capture", ("another release", "eager"))


def _failed_check(s: Situation) -> Found | None:
    found = not_outlived(s, s.events.of("nccl.internal_assert"))
    other = (*SHM_NAMED, *SHM_FAILED, *SHM_SIGNALS, "fabric.connect_failed", "rdma.")
    if not found or somebody_died(s, found) or s.events.has(*other):
        return None
    has_error = s.events.has("nccl.error", "nccl.result")
    events = [e for e in found if has_error or not e["assertion"].startswith(("Could not", "Attribute"))]
    if not events:
        return None
    version = s.events.first("nccl.version")
    words = {"version": f" {version['version']}" if version else "", "check": events[0]["assertion"][:80]}
    # One check is known; the others may be the machine's.
    confidence = 0.85 if any("maxSharedMem" in e["assertion"] for e in events) else 0.66
    return found_in(s, events, confidence, (), words=words, fixes=("another release", "report"))


_UNFIT = ("version.nccl_differs", "version.symbol_missing", "version.cuda_differs")
_SURELY_UNFIT = (*_UNFIT, "version.no_code_for", "version.ofi_option")
_OF_OFI = ("version.ofi_register", "version.ofi_option")
_NOT_TOGETHER = "the versions of NCCL, torch or a plugin do not fit together"
_OF_CUDA = lazy_pattern(r"unhandled cuda error|no kernel image|CUDA error|Cuda failure")


@rule("version-mismatch")
def version_mismatch(s: Situation) -> Iterator[Found]:
    """Lines that name it, else nodes of a failed job that print other versions."""
    events = s.events.of(*_UNFIT, *_OF_OFI) or _lacks_code(s) or _other_versions(s)
    if events := not_outlived(s, events):
        confidence = sure_beside(s, 0.96 if any(e.kind in _SURELY_UNFIT for e in events) else 0.7, events)
        say = "inferred" if all(e.kind == "version.nccl" for e in events) else "named"
        versions = ", ".join(sorted({e["version"] for e in events if e["version"]}))
        printed = f"the nodes run different versions of NCCL: {versions}" if versions else _NOT_TOGETHER
        words = {"what": next(filter(None, map(_unfit, events)), printed)}
        yield found_in(s, events, confidence, (), words=words, say=say)


def _unfit(e: LogEvent) -> str:
    """What a line says that does not fit."""
    if e.kind == "version.nccl_differs":
        first, second = _dotted(e["first"]), _dotted(e["second"])
        return f"rank {e['first_rank']} runs NCCL {first}, rank {e['second_rank']} NCCL {second}"
    if e.kind == "version.symbol_missing" and (symbol := e["symbol"] or e["unloaded"]):
        return f"a library was built for another version: {symbol} is missing"
    if e.kind == "version.cuda_differs":
        return "libraries were built for different versions of CUDA"
    if e.kind == "version.no_code_for":
        return f"this build of torch holds no code for the devices (sm_{e['sm']})"
    if e.kind == "version.ofi_option":
        return f"the OFI plugin of NCCL was built for a newer libfabric than the one that was loaded, which does not know {e['option']}"
    if e.kind == "version.ofi_register":
        return "the OFI plugin of NCCL cannot register memory (-22): plugin, libfabric and NCCL do not fit"
    return ""


def _lacks_code(s: Situation) -> Sequence[LogEvent]:
    """Torch's warning, if the first that failed is a call of CUDA: what needs no kernel of its own may work."""
    first = first_exception(s)
    warned = s.events.of("version.no_code_for")
    said = first.text if first is not None else next((e.text for e in s.events.of("nccl.error")), "")
    return warned if warned and _OF_CUDA.search(said) else ()


def _other_versions(s: Situation) -> Sequence[LogEvent]:
    if not in_trouble(s):
        return ()
    by_host: dict[str, set[str]] = {}
    events = [e for e in s.events.of("version.nccl") if e.host]
    for e in events:
        by_host.setdefault(e.host, set()).add(e["version"])
    is_consistent = all(len(versions) == 1 for versions in by_host.values())
    return events if is_consistent and len(set().union(*by_host.values())) > 1 else ()


def _dotted(code: str) -> str:
    """`21805` is 2.18.5; versions before 2.9 count in hundreds."""
    if not code.isdecimal() or len(code) > 6:
        return code
    number = int(code)
    base = 10_000 if number >= 10_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"


_NEAR_FRAMES = 40


@rule("arithmetic-in-library")
def arithmetic_in_library(s: Situation) -> Found | None:
    """The signal, with the native frame beside it that is of a library of the device's vendor."""
    signals = [e for e in s.events.of("python.fatal", "ending.fatal_signal", "ending.fpe") if _is_arithmetic(e)]
    frames = s.events.of("native.in_library")
    near = [f for f in frames if any(abs(f.order - e.order) <= _NEAR_FRAMES for e in signals)]
    if not near or (s.watchdogs.first is not None and s.watchdogs.first.order < signals[0].order):
        return None
    name = near[0]["symbol"] or near[0]["in_ucx"] or near[0]["library"]
    return found_in(s, [*signals[:2], *near[:2]], 0.75, words={"library": name[:60]})


def _is_arithmetic(event: LogEvent) -> bool:
    said = " ".join(event[n] for n in ("what", "name", "signal", "caught", "shell"))
    return event.kind == "ending.fpe" or "loating point exception" in said or said.split()[:1] == ["8"]


_DEBUG, _MAKES_HELPERS = "TORCH_DISTRIBUTED_DEBUG", "_create_process_group_wrapper"


@rule("debug-level-differs", needs=("stacks",))
def debug_level_differs(s: Situation) -> Found | None:
    """Ranks with the level DETAIL that make a helper group in init_process_group, and others without it, which make none."""
    levels = {r: _debug_level(e) for r, e in s.case.ranks.items() if e.main_stack is not None}
    detailed, others = ([r for r, x in levels.items() if (x == "DETAIL") is is_so] for is_so in (True, False))
    stacks = {r: s.case.ranks[r].main_frames for r in detailed}
    stuck = {r: f for r, f in stacks.items() if any(x.function == _MAKES_HELPERS for x in f)}
    if (
        not s.is_hang
        or not stuck
        or not others
        or any(_MAKES_HELPERS in {f.function for f in s.case.ranks[r].main_frames} for r in others)
    ):
        return None
    init = w.own_line(next(iter(stuck.values())))
    script = init.file if init is not None else ""
    named = _lines_that_name(str(Path(script).parent)) if script else []
    at = named[0] if len(named) == 1 else init
    lines = [
        EvidenceLine(f"rank {r} environment", f"{_DEBUG}={levels[r] or 'not set'}")
        for r in (*detailed[:2], *others[:2])
    ]
    words = {
        "who": w.name_ranks(detailed),
        "others": w.name_ranks(others),
        "spot": w.spot(at) if at else "the launch script",
    }
    return Found(0.93, tuple(detailed), lines, words, victims=tuple(others), location=at)


def _debug_level(evidence: RankEvidence) -> str:
    identity = evidence.identity
    return {**identity.variables, **(identity.variables_at_init or {})}.get(_DEBUG, "").upper()


def _lines_that_name(folder: str) -> list[Frame]:
    """Where the program names the variable, in any of its files: the launcher's, too."""
    found = {(p, n.lineno) for p, n in program_nodes(folder) if isinstance(n, ast.Constant) and n.value == _DEBUG}
    return [frame_at(path, line) for path, line in sorted(found)]
