"""Rules on what should be the same, or sound, on all ranks of a job: settings, versions, code, clocks, nodes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from unhang.analyze.situation import Situation
from unhang.model import Finding, Reading, grouped
from unhang.model.evidence import Value
from unhang.read.environment import Assignment, Settings, in_scope
from unhang.rules.base import Found, rule
from unhang.rules.env import judge_settings
from unhang.rules.job.network import MUST_AGREE
from unhang.rules.machine import cite, compares, found_by, hosts_of, ranks_of, size
from unhang.rules.wording import name_ranks

_MOST_VALUES, _MOST_SHOWN = 3, 60
_LIKE_A_VARIABLE = re.compile(r"[A-Z0-9]+(_[A-Z0-9]+)+|[A-Z]+PATH")
_MAJORITY = 3


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same on all ranks. `odd`: ranks that are not with the majority; empty where there is none."""

    what: str
    by_value: Mapping[Value, tuple[Reading, ...]]

    @property
    def usual(self) -> Value:
        """The most frequent value."""
        return next(iter(self.by_value))

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the ranks have the same."""
        counts = [len(readings) for readings in self.by_value.values()]
        return 2 * counts[0] > sum(counts)

    @property
    def odd_readings(self) -> tuple[Reading, ...]:
        """What was read on the odd ranks."""
        others = list(self.by_value.values())[1:] if self.has_majority else ()
        return tuple(r for readings in others for r in readings)

    @property
    def odd(self) -> tuple[int, ...]:
        """The odd ranks."""
        return ranks_of(self.odd_readings)

    @property
    def cited(self) -> tuple[Reading, ...]:
        """One reading of each value."""
        return tuple(readings[0] for readings in list(self.by_value.values())[:_MOST_VALUES])

    def __str__(self) -> str:
        """What is there, and what most have: `torch 2.12.0, the others 2.13.0`."""
        if self.has_majority:
            given = list(dict.fromkeys(list(self.by_value)[1:]))[:_MOST_VALUES]
            between = "=" if _LIKE_A_VARIABLE.fullmatch(self.what) else " "
            have = f"no {self.what}" if given == [None] else f"{self.what}{between}{' and '.join(map(_shown, given))}"
            return f"{have}, the others {_shown(self.usual)}"
        some = list(self.by_value.items())[:_MOST_VALUES]
        return f"{self.what}: {', '.join(f'{_shown(value)} ({name_ranks(ranks_of(of))})' for value, of in some)}"


def _shown(value: Value) -> str:
    text = "none" if value is None else str(value) or "(empty)"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-_MOST_SHOWN // 2 :]}"


def _by(readings: Iterable[Reading], value_of: Callable[[Reading], Value]) -> dict[Value, tuple[Reading, ...]]:
    """Readings by a value, the most frequent first."""
    found: dict[Value, tuple[Reading, ...]] = {}
    for reading in readings:
        value = value_of(reading)
        found[value] = (*found.get(value, ()), reading)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _together(found: Iterable[Difference], weight: Callable[[Difference], float]) -> Iterator[list[Difference]]:
    """Differences on the same ranks belong together (one image, one node, one mistake), the weightiest first."""
    groups = grouped(
        (difference.odd, difference)
        for difference in sorted((d for d in found if len(d.by_value) > 1), key=weight, reverse=True)
    )
    yield from groups.values()


def _headline(group: Sequence[Difference]) -> str:
    """Which ranks have what."""
    what = "; ".join(map(str, group[:3])) + (f"; and {len(group) - 3} more" if len(group) > 3 else "")
    first = group[0]
    if not first.has_majority:
        return f"the ranks differ, and no majority says who is right: {what}"
    have = "have" if len(first.odd) > 1 else "has"
    return f"{name_ranks(first.odd)} on {hosts_of(first.odd_readings)} {have} {what}"


def _cited(group: Iterable[Difference]) -> list[Reading]:
    return [reading for d in group for reading in d.cited]


@rule("code-differs", reads=("versions.code",), lacks=compares("versions.code"))
def code_differs(s: Situation) -> Iterator[Found]:
    """The revision, else the changes."""
    code = s.readings.of("versions.code")
    revisions = Difference("revision", _by(code, lambda r: r.text("revision")[:10]))
    known = [r for r in code if r["changes"] is not None]
    changed = Difference("uncommitted changes", _by(known, lambda r: r.text("changes") or None))
    for found, confidence in ((revisions, 0.93), (changed, 0.85)):
        if len(found.by_value) > 1:
            victims = s.others(found.odd) if found.odd else ()
            yield Found(confidence, found.odd, cite(found.cited), {"what": _headline([found])}, victims=victims)
            return


_COMPONENT = "versions.component"
_WEIGHTS = {
    "torch": 0.95,
    "torch CUDA": 0.95,
    "torch HIP": 0.95,
    "torch revision": 0.92,
    "NCCL": 0.95,
    "preloaded NCCL": 0.95,
    "NCCL network plugin": 0.92,
    "NCCL on LD_LIBRARY_PATH": 0.75,
    "Python": 0.8,
    "numpy": 0.75,
    "NVIDIA driver": 0.72,
    "processor": 0.75,
    "kernel": 0.5,
    "C library": 0.55,
}
_FRAMEWORK, _PATCH = 0.85, 0.6


@rule("versions-differ", reads=(_COMPONENT,), lacks=compares(_COMPONENT))
def versions_differ(s: Situation) -> Iterator[Found]:
    """All that differs on the same ranks at once."""
    names = dict.fromkeys(r.subject for r in s.readings.of(_COMPONENT))
    found = [Difference(name, s.readings.by_value(_COMPONENT, name, "version")) for name in names]
    for group in _together(found, _weight_of_version):
        weight, odd = _weight_of_version(group[0]), group[0].odd
        packages = [d for d in group if d.what not in _WEIGHTS or d.what in ("torch", "numpy")]
        wanted = [f"{d.what}=={_shown(d.usual)}" for d in packages if d.usual is not None and d.has_majority]
        words = {"what": _headline(group), "wanted": " ".join(wanted) or "-r requirements.txt"}
        is_fault = weight >= _FRAMEWORK
        victims = s.others(odd) if odd and is_fault else ()
        yield Found(weight, odd, cite(_cited(group)), words, "fault" if is_fault else "note", victims=victims)


def _weight_of_version(difference: Difference) -> float:
    if difference.what == "Python" and len({".".join(str(v).split(".")[:2]) for v in difference.by_value}) < 2:
        return _PATCH
    return _WEIGHTS.get(difference.what, _FRAMEWORK)


_PROCESS, _VARIABLE = "environment.process", "environment.variable"
_COMPARED = re.compile(r"(?:NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP|MKL|UCX|FI)_\w+|PYTHON[A-Z]+|LD_PRELOAD|LD_LIBRARY_PATH")
# What is set for each rank or host, or only changes what is printed, or where something is written.
_BY_NATURE = re.compile(
    r"(?:\w+_)?(?:RANK|WORLD_SIZE|LOCALID|PROCID|NODEID)|\w*VISIBLE_DEVICES|TORCHELASTIC_\w+|PET_\w+|SLURM_\w+|\w+_(?:IFNAME|IFACE"
    r"|HCA|NET_DEVICES|HOSTID|GID_INDEX|DOMAIN|TOPO_FILE|PLACES|AFFINITY)|CUDA_MPS_\w+|NCCL_DEBUG\w*|TORCH_LOGS|TORCH_CPP_LOG_LEVEL"
    r"|TORCH_SHOW_CPP_STACKTRACES|TORCH_(?:NCCL|FR)_(?:DEBUG_INFO|DUMP)\w*|PYTHON(?:UNBUFFERED|FAULTHANDLER|WARNINGS|DONTWRITEBYTECODE"
    r"|STARTUP|IOENCODING|BREAKPOINT)|(?!LD_)\w+_(?:DIR|DIRECTORY|PATH|FILE|HOME|PREFIX|ROOT|TMP)|UNHANG_\w+"
)
_TRANSPORT = re.compile(r"(?:NCCL|GLOO|UCX|FI|TORCH_NCCL|TORCH_GLOO|TORCH_DISTRIBUTED)_\w+")
_LOADED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")


@rule("environment-differs", reads=(_PROCESS,), lacks=compares(_PROCESS))
def environment_differs(s: Situation) -> Iterator[Found]:
    """All variables that differ on the same ranks at once."""
    names = dict.fromkeys(r.subject for r in s.readings.of(_VARIABLE) if _COMPARED.fullmatch(r.subject))
    found = [_values_of(s, name) for name in names if not _BY_NATURE.fullmatch(name)]
    for group in _together(found, _weight_of_variable):
        first = group[0]
        words = {"what": _headline(group), "wanted": "; ".join(map(_wanted, group[:3]))}
        say = "both" if first.what in MUST_AGREE else "each"
        yield Found(_weight_of_variable(first), first.odd, cite(_cited(group)), words, say, victims=())


def _values_of(s: Situation, name: str) -> Difference:
    """A variable by value; None where it is not set, and a reading that says so."""
    set_on = {r.rank: r for r in s.readings.of(_VARIABLE, subject=name)}
    by_value = _by(s.readings.of(_PROCESS), lambda p: set_on[p.rank].text("value") if p.rank in set_on else None)

    def read(process: Reading) -> Reading:
        return set_on.get(process.rank) or replace(process, kind=_VARIABLE, subject=name, fields={"value": "(not set)"})

    return Difference(name, {value: tuple(map(read, processes)) for value, processes in by_value.items()})


def _weight_of_variable(difference: Difference) -> float:
    name = difference.what
    if name in MUST_AGREE:
        return 0.92
    if name == "TORCH_DISTRIBUTED_DEBUG":
        return 0.9 if "DETAIL" in difference.by_value else 0.55
    if _TRANSPORT.fullmatch(name):
        return 0.75
    return 0.7 if name in _LOADED else 0.6


def _wanted(difference: Difference) -> str:
    if not difference.has_majority:
        return f"{difference.what}=the same everywhere"
    usual = difference.usual
    return f"{difference.what} not set" if usual is None else f"{difference.what}={_shown(usual)}"


@rule("environment-settings", reads=(_PROCESS,))
def environment_settings(s: Situation) -> Iterator[Found]:
    """The findings of `unhang env` on each different environment; what several ranks have in common once."""
    found: dict[tuple[str, str], tuple[Finding, set[int]]] = {}
    for ranks, readings in _environments(s):
        set_here = [r for r in readings if in_scope(r.subject)]
        assignments = tuple(Assignment(r.subject, r.text("value"), reported_by=r.where) for r in set_here)
        for finding in judge_settings([Settings("the environment", "process", assignments)]).findings:
            named = {name for e in finding.evidence for name in re.findall(r"[A-Za-z_]\w*", e.text.partition("=")[0])}
            evidence = cite([r for r in readings if r.subject in named]) or finding.evidence
            first = replace(finding, evidence=evidence)
            found.setdefault((finding.rule, finding.title), (first, set()))[1].update(ranks)
    for finding, on in found.values():
        words = {"title": finding.title, "because": finding.because}
        where = finding.location
        yield Found(
            finding.confidence,
            tuple(sorted(on)),
            finding.evidence,
            words,
            fixes=finding.fixes,
            location=where,
            victims=(),
        )


def _environments(s: Situation) -> Iterator[tuple[tuple[int, ...], list[Reading]]]:
    """Each different environment, with the ranks that have it."""
    of_rank: dict[int, list[Reading]] = {r.rank: [] for r in s.readings.of(_PROCESS) if r.rank is not None}
    for reading in s.readings.of(_VARIABLE):
        if reading.rank in of_rank:
            of_rank[reading.rank].append(reading)
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank, readings in of_rank.items():
        key = tuple((r.subject, r.text("value")) for r in readings if not _BY_NATURE.fullmatch(r.subject))
        alike.setdefault(key, []).append(rank)
    for ranks in alike.values():
        yield tuple(ranks), of_rank[ranks[0]]


@rule("clock-jump", reads=("machine.clock",))
def clock_jump(s: Situation) -> Iterator[Found]:
    """All hosts whose clock moved half a second or more."""
    jumping = [r for r in s.readings.of("machine.clock") if abs(r.number("jump_s") or 0.0) > 0.5]
    if jumping:
        worst_s = max((r.number("jump_s") or 0.0 for r in jumping), key=abs)
        words = {"jump": f"{abs(worst_s):.1f}", "way": "forward" if worst_s > 0 else "back"}
        yield found_by(jumping, 0.75, words)


@rule("clock-skew", reads=("machine.clock_offset",))
def clock_skew(s: Situation) -> Iterator[Found]:
    """Those that are off the middle by more than a second; of two clocks nobody knows which is right."""
    clocks = [
        (r, offset_s) for r in s.readings.of("machine.clock_offset") if (offset_s := r.number("offset_s")) is not None
    ]
    if not clocks:
        return
    middle_s = statistics.median_low([offset_s for _, offset_s in clocks])
    slack_s = min(_uncertainty_s(r) for r, offset_s in clocks if offset_s == middle_s)
    apart = [(r, offset_s - middle_s) for r, offset_s in clocks]
    far = [(r, apart_s) for r, apart_s in apart if abs(apart_s) - _uncertainty_s(r) - slack_s > 1.0]
    if not far:
        return
    readings, off = [r for r, _ in clocks], [r for r, _ in far]
    is_decided = len(clocks) >= _MAJORITY and 2 * len(off) < len(clocks)
    worst, apart_s = max(far, key=lambda each: abs(each[1]))
    ranks = ranks_of(off)
    words = {
        "hosts": hosts_of(off),
        "ranks": f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{' ...' * (len(ranks) > 8)}",
        "way": "ahead" if apart_s > 0 else "behind",
        "who": hosts_of(readings) if len({r.host for r in readings}) > 1 else "the ranks",
        "apart": f"{abs(apart_s):.1f}",
        "known": f"{_uncertainty_s(worst) + slack_s:.2f}",
    }
    confidence, say = 0.8 if abs(apart_s) > 300.0 else 0.75, "decided" if is_decided else "apart"
    yield Found(confidence, ranks if is_decided else (), cite(off if is_decided else readings), words, say, victims=())


def _uncertainty_s(reading: Reading) -> float:
    return reading.number("uncertainty_s") or 0.0


@rule("nodes-unlike", reads=("machine.memory", "machine.cores"))
def nodes_unlike(s: Situation) -> Iterator[Found]:
    """Each thing of which a node has less than three quarters of what is usual."""
    for kind, name, what in (("machine.memory", "total_bytes", "memory"), ("machine.cores", "online", "cores")):
        hosts: dict[str, Reading] = {}
        for reading in s.readings.of(kind):
            hosts.setdefault(reading.host, reading)
        amounts = {host: amount for host, r in hosts.items() if (amount := r.number(name))}
        usual = sorted(amounts.values())[len(amounts) // 2] if amounts else 0.0
        less = [hosts[host] for host, amount in amounts.items() if amount < 0.75 * usual]
        if less and len(amounts) >= _MAJORITY and 2 * len(less) < len(amounts):
            least = min(amounts[r.host] for r in less)
            words = {"what": what}
            for word, amount in (("least", least), ("usual", usual)):
                words[word] = size(amount) if what == "memory" else f"{amount:g}"
            yield found_by(less, 0.72, words)
