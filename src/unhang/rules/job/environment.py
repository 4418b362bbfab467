"""Rules on settings and versions, from what a job printed of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from unhang.analyze.first_errors import SeenError, errors_of
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, LogEvent
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules.base import Found, rule
from unhang.rules.failure import first_exception
from unhang.rules.job.network import named_interface
from unhang.rules.log_lines import found_in, quote, sure_beside

# Modules that every Python of every build has. Of others (`distutils`, `_ctypes`) a version or a build may have none.
ALWAYS = frozenset(
    {
        "abc", "argparse", "ast", "base64", "codecs", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime", "enum",
        "functools", "glob", "heapq", "importlib", "inspect", "io", "json", "logging", "multiprocessing", "numbers", "operator", "os",
        "pathlib", "pickle", "platform", "queue", "random", "re", "runpy", "shutil", "signal", "socket", "string", "struct", "subprocess",
        "tempfile", "textwrap", "threading", "time", "tokenize", "traceback", "types", "typing", "urllib", "uuid", "warnings", "weakref",
        "zipfile",
    }
)  # fmt: skip
_GONE = re.compile(r"No module named '(\w+)")
_VERSION = re.compile(r"/lib/python(\d\.\d{1,3})/")
# What the two ends of a connection must agree on: it decides into which pieces a message is cut.
MUST_AGREE = frozenset(
    {
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
        "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL", "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS", "NCCL_CHUNK_SIZE",
    }
)  # fmt: skip
_IS_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:]+")
_LEAST_LIMIT_MS = 1000  # the first collective alone takes longer, as it connects the ranks
# Of each kind of line that decides: how sure it is, and its fixes.
_DECIDING = {
    "refused": (0.96, ("accepted",)),
    "no_algorithm": (0.96, ("unforced",)),
    "unknown_word": (0.95, ("unforced",)),
    "bad_address": (0.95, ("no-address",)),
    "no_network": (0.9, ("free-choice", "loadable")),
    "no_plugin": (0.75, ("free-choice", "loadable")),
}


@rule("misconfigured-env")
def misconfigured_env(s: Situation) -> Iterator[Found]:
    """The deciding lines; else pieces of different size, with the settings that differ, of which both ends are to blame."""
    deciding = s.events.of(*(f"environment.{name}" for name in _DECIDING))
    if deciding:
        first = deciding[0]
        say = first.kind.removeprefix("environment.")
        confidence, fixes = _DECIDING[say]
        network = [e for e in s.events.of("environment.nccl_set") if e["name"].startswith("NCCL_NET")]
        words = {name: first[name] for name in ("name", "value", "function")}
        words |= {"repr": repr(first["value"]), "word": repr(first["word"])}
        words |= {"none": "none of the networks that it may use"}
        if say == "bad_address":
            words["value"] = f"={first['value']}" if first["value"] else ""
        if say == "no_plugin" and network:
            confidence = 0.9
            words["none"] = f"no network that fits {network[0]['name']}={network[0]['value']}"
        culprits = None if say == "refused" else ()
        events = [e for e in deciding if e.kind == first.kind]
        yield found_in(s, events, confidence, culprits, words=words, say=say, fixes=fixes)
        return
    addresses = [e for e in s.events.of("gloo.no_interface") if _IS_ADDRESS.fullmatch(e["interface"])]
    if addresses:
        words = {"name": "GLOO_SOCKET_IFNAME", "value": addresses[0]["interface"]}
        yield found_in(s, addresses, 0.97, (), words=words, say="address", fixes=("right-name",))
        return
    if named := named_interface(s):
        words = {"name": named[0]["name"], "value": named[0]["value"].strip().rstrip(".")}
        yield found_in(s, named, 0.95, (), words=words, say="no_interface", fixes=("right-name",))
        return
    limits = {x.limit_ms for x in s.watchdogs.timed_out}
    if limits and all(limit is not None and 0 <= limit < _LEAST_LIMIT_MS for limit in limits):
        events = [e for x in s.watchdogs.timed_out for e in x.events]
        yield found_in(
            s, events, 0.9, (), words={"limit": max(filter(None, limits), default=0)}, say="limit", fixes=("limit",)
        )
        return
    differ = s.events.of("environment.sizes_differ")
    if differ and not s.events.has("fingerprint.mismatch", "fingerprint.nccl"):
        unequal = _unequal(s)
        values = dict.fromkeys(f"{e['value']} on {e['node']}" for e in unequal)
        words = {"name": unequal[0]["name"] if unequal else "", "values": " and ".join(values)}
        words |= {"local": differ[0]["local"], "remote": differ[0]["remote"]}
        say, confidence = ("set", 0.92) if unequal else ("sizes", 0.68)
        events = [*unequal, *differ]
        yield found_in(s, events, confidence, (), words=words, say=say, fixes=("compare", "one-place"))


def _unequal(s: Situation) -> Sequence[LogEvent]:
    """The lines of the first setting that must agree and does not, one line for each value."""
    by_name: dict[str, dict[str, LogEvent]] = {}
    for event in s.events.of("environment.nccl_set"):
        if event["name"] in MUST_AGREE and event["node"]:
            by_name.setdefault(event["name"], {}).setdefault(_same(event["value"]), event)
    unequal = (v for v in by_name.values() if len(v) > 1 and len({e["node"] for e in v.values()}) > 1)
    return tuple(next(unequal, {}).values())


def _same(value: str) -> str:
    """Two spellings of one value are one value."""
    from unhang.rules.env.values import number  # with it come the tables of all variables

    found = number(value)
    return str(found) if found is not None and value.strip().isdecimal() else value.strip().lower()


@rule("environment-changed")
def environment_changed(s: Situation) -> Found | None:
    """A module that is gone, as the watcher saw it go; or one of Python's own, in a job that began with it: by another version in the traceback, or by steps that it made."""
    for error in errors_of(s):
        gone = _GONE.search(error.text)
        if gone and (seen_to_go := _seen_to_go(s, gone[1])) is not None:
            path, at_s, name = seen_to_go
            why = f"{name} went from {path} {at_s:.0f} s after the start"
            raised = EvidenceLine("exception", error.text[:300], error.source.line)
            ranks = () if error.rank is None else (error.rank,)
            return Found(
                0.97,
                ranks,
                (raised, EvidenceLine(path, why)),
                {"module": gone[1], "why": why},
                "seen",
                is_root=True,
                victims=(),
            )
        if not error.error.type.endswith(("ModuleNotFoundError", "ImportError")) or not gone or gone[1] not in ALWAYS:
            continue
        told, after = _of_its_job(s, error, "environment.python"), _version_of(error)
        others = [e for e in told if after and e["version"] != after]
        trained = _of_its_job(s, error, "pace.at", "progress.step", "progress.bar")
        if not others and not trained:
            return None
        if others:
            why = f"it told Python {others[0]['version']}, and the traceback comes from {after}"
            words = {"module": gone[1], "before": others[0]["version"], "after": after, "why": why}
        else:
            words = {"module": gone[1], "why": "it had trained"}
        seen = quote([*others[:1], *trained[-1:]])
        place = f"{PurePath(error.source.path).name or 'log'}:{error.source.line}"
        raised = EvidenceLine(place, error.text[:300], error.source.line)
        ranks = () if error.rank is None else (error.rank,)
        return Found(
            0.95 if others else 0.85,
            ranks,
            (raised, *seen),
            words,
            "version" if others else "",
            is_root=True,
            victims=(),
        )
    return None


def _seen_to_go(s: Situation, module: str) -> tuple[str, float, str] | None:
    """The folder from which a module went while the job ran, when, and its name there."""
    for change in s.case.course.changed if s.case.course else ():
        name = next((n for n in change.gone if n == module or n.startswith((f"{module}.", f"{module}-"))), None)
        if name is not None:
            return change.path, change.at_s, name
    return None


def _of_its_job(s: Situation, error: SeenError, *kinds: str) -> list[LogEvent]:
    """Lines of the job in which an exception was raised: of files named alike (`job.err`, `job.out`) where there are more than two."""
    stem = PurePath(error.source.path).stem
    is_one = len({line.source.path for line in s.case.log}) <= 2
    return [e for e in s.events.of(*kinds) if is_one or PurePath(e.source.path).stem == stem]


def _version_of(error: SeenError) -> str:
    return next((found[1] for frame in error.frames if (found := _VERSION.search(frame.file))), "")


_NAMED = ("version.nccl_differs", "version.symbol_missing", "version.cuda_differs")
_SURE = (*_NAMED, "version.no_code_for")
_OF_CUDA = lazy_pattern(r"unhandled cuda error|no kernel image|CUDA error|Cuda failure")


@rule("version-mismatch")
def version_mismatch(s: Situation) -> Iterator[Found]:
    """Lines that name it, else nodes of a failed job that print other versions."""
    events = s.events.of(*_NAMED, "version.ofi_register") or _lacks_code(s) or _other_versions(s)
    if events:
        confidence = sure_beside(s, 0.96 if any(e.kind in _SURE for e in events) else 0.7)
        say = "inferred" if all(e.kind == "version.nccl" for e in events) else "named"
        words = {"what": next(filter(None, map(_unfit, events)), "") or _printed(events)}
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
    if e.kind == "version.ofi_register":
        return "the OFI plugin of NCCL cannot register memory (-22): plugin, libfabric and NCCL do not fit"
    return ""


def _lacks_code(s: Situation) -> Sequence[LogEvent]:
    """Torch's warning, if the first that failed is a call of CUDA: what needs no kernel of its own may work."""
    first = first_exception(s)
    warned = s.events.of("version.no_code_for")
    return warned if warned and first is not None and _OF_CUDA.search(first.text) else ()


def _printed(events: Sequence[LogEvent]) -> str:
    versions = ", ".join(sorted({e["version"] for e in events if e["version"]}))
    if versions:
        return f"the nodes run different versions of NCCL: {versions}"
    return "the versions of NCCL, torch or a plugin do not fit together"


def _other_versions(s: Situation) -> Sequence[LogEvent]:
    if not (s.is_hang or s.is_crash):
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
