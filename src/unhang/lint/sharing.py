"""The functions of a large project, followed by several processes at once: each follows those of its own files, and what one learns all are told."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from unhang.lint.divergence import GROUPS
from unhang.lint.exchange import Exchanges
from unhang.lint.ir import Found, Ref, Set, calls_in, nodes_in
from unhang.lint.keeping import is_filled_by_batches
from unhang.lint.link import NOTHING, Link
from unhang.lint.values import DIFFERS, Asked, Learned, Value

_FEW = 3_000  # functions that one process follows sooner than another one is of use
_MOST = 4  # processes: each holds much of the project
_LIMIT, _TIMES = 60.0, 20  # seconds, and times what the first process took, that another one may take
_MOST_TIMES = 3  # that a function is followed again: those that call each other need not come to an end
_LONGEST = 3_600.0  # seconds that one of them waits for what the others have learned
Roots = list[tuple[int, tuple[int, int]]]


def findings(link: Link, jobs: int) -> Iterator[tuple[str, Found]]:
    """Every finding, by file and line. What is learned of objects, of what is wrapped and of signals on the way is asked again where it matters."""
    own, *others = _shares(link, jobs or len(os.sched_getaffinity(0)))
    helpers: list[Helper] = []
    try:
        for share in others:
            helpers.append(Helper(link, share, helpers))
        _together(link, own, helpers)
    finally:
        for helper in helpers:
            helper.end()
    _judge_threads(link)
    Exchanges(link).judge()
    for report in sorted(link.findings.values(), key=lambda r: (r.path, r.found.line, r.found.column, r.found.code)):
        yield report.path, report.found


def _shares(link: Link, jobs: int) -> list[Roots]:
    """The functions to follow, each with its place in the order; one share for each process, whose files lie side by side."""
    roots = list(enumerate(link.roots))
    count = min(jobs, _MOST, 1 + len(roots) // _FEW)
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods() or threading.active_count() > 1:
        return [roots]
    sizes = [0] * len(link.project.files)
    for _, (file, at) in roots:
        sizes[file] += len(memoryview(link.project.function(file, at).raw))
    whole, so_far, share_of = sum(sizes) + 1, 0, []
    for size in sizes:
        share_of.append(so_far * count // whole)
        so_far += size
    shares = [[r for r in roots if share_of[r[1][0]] == share] for share in range(count)]
    return [share for share in shares if share]


def _together(link: Link, own: Roots, helpers: Sequence[Helper]) -> None:
    began = time.monotonic()
    _follow(link, own, 0)
    limit = _LIMIT + _TIMES * (time.monotonic() - began)
    for helper in helpers:
        learned = helper.answer(limit)
        if learned is not None:
            _learn(link, learned, own)
        else:  # it has come to an end, for want of memory perhaps
            _follow(link, helper.share, 0)
            own += helper.share
    _note_signals(link)
    for helper in helpers:
        helper.tell(_learned(link))
    _follow_again(link, own)
    for helper in helpers:
        found = helper.answer(limit) if helper.is_alive else None
        if found is not None:
            _take(link, found)
        elif helper.share[0] not in own:
            _follow(link, helper.share, 1)


def _note_signals(link: Link) -> None:
    """What handlers of signals set is the process's own."""
    for handler in link.handlers:
        if handler.kind in ("fn", "bound"):
            file, function = handler.sort[1], link.project.function(handler.sort[1], handler.sort[2])
            link.flags |= set(function.sets)
            targets = (t for n in nodes_in(function.body) if isinstance(n, Set) for t in n.targets)
            names = {t.path for t in targets if isinstance(t, Ref)}
            calls = (n.func for n in calls_in(function.body) if not n.args)
            events = {f.path[:-4] for f in calls if isinstance(f, Ref) and f.path.endswith(".set")}  # `stop.set()`
            link.flags |= {e.removeprefix("self.") for e in events if e.startswith("self.")}
            names |= events
            link.global_flags |= {(file, name) for name in names & link.module_values(file).keys()}


def _follow(link: Link, share: Roots, turn: int) -> None:
    """Follows functions. What others set at earlier places in the order is set before."""
    pending = sorted(link.pending, key=lambda one: one.root)[::-1] if turn else []
    for n, root in share:
        while pending and pending[-1].root < n:
            link.set_attribute(*pending.pop()[1:])
        link.when = turn, n
        if (*root, NOTHING) not in link._summaries:
            link.summary(*root)


def _follow_again(link: Link, share: Roots) -> None:
    """After more is known; once more, where that says of a container who fills it."""
    for _ in range(2):
        filled, news = len(link.by_state), _news(link)
        asked = _askers(link, news) | (link.asks_grads & news)
        if link.flags or link.global_flags:
            _forget(link, news)
            _follow(link, share, 1)
            asked = set()
        times = Counter[Asked]()
        while asked:
            times.update(asked)
            more = _askers(link, _changed(link, share, asked))
            asked = {one for one in more if times[one] < _MOST_TIMES}
        if len(link.by_state) == filled:
            return


def _askers(link: Link, news: set[Asked]) -> set[Asked]:
    """The functions that have asked for these, and those that are written in such a one."""
    asked = set[Asked]().union(*(link._used.get(one, ()) for one in news))
    asked |= {(f, at) for f, at in link.closures if (f, link.project.function(f, at).inside) in asked}
    return {one for one in asked if len(one) == 2}


def _changed(link: Link, share: Roots, asked: set[Asked]) -> set[Asked]:
    """Follows those again that have asked for what is news, and says what they give else than before."""
    before = {key: summary for key, summary in link._summaries.items() if key[:2] in asked}
    attributes = {cls: dict(values) for cls, values in link._attributes.items()}
    modules = {file: link._modules[file] for file, at, _ in before if at == 0 and file in link._modules}
    _forget(link, asked)
    _follow(link, share, 1)
    changed: set[Asked] = {key[:2] for key, summary in before.items() if link.summary(*key) != summary}
    changed |= {(file, 0) for file, values in modules.items() if link._modules.get(file) != values}
    for (file, cls), values in attributes.items():
        if (now := link._attributes.get((file, cls), {})) != values:
            changed |= {(file, "attributes", cls)}
            changed |= {(file, "attribute", cls, name) for name in now if now[name] != values.get(name)}
    return changed


def _forget(link: Link, stale: set[Asked]) -> None:
    """Forgets what functions gave before more was known."""
    for inner in [c for c in link.closures if (c[0], link.project.function(*c).inside) in stale]:
        del link.closures[inner]
    link._twice.clear()
    for followed in [key for key in link._summaries if key[:2] in stale]:
        del link._summaries[followed]
    modules = {one[0] for one in stale if one[1] == 0}
    for name in [name for name, (_, by) in link._tops.items() if by in modules] if modules else ():
        del link._tops[name]
    link._attributes = {key: v for key, v in link._attributes.items() if (key[0], "attributes", key[1]) not in stale}
    link.whole_classes &= link._attributes.keys()
    for file in modules:
        link._modules.pop(file, None)
    link.threads = [t for t in link.threads if t.by not in stale]
    for key, report in list(link.findings.items()):
        report.by.difference_update(stale)
        if not report.by:
            del link.findings[key]
    link.causes = {cause: key for cause, key in link.causes.items() if key in link.findings}


def _matters(link: Link, v: Value | None) -> bool:
    """Whether an object with which others are made makes collectives, is what differs between ranks, or holds that."""
    if v is not None and v.dep:
        return True
    several = () if v is None or v.sort is None else v.sort[1] if v.sort[0] == "one of" else (v.sort,)
    for kind, *of in several:
        if kind != "obj":
            return True
        held = link._attributes.get((of[0], of[1]), {})
        if any(a.dep & DIFFERS for a in held.values()) or not link.meets.isdisjoint(
            link.project.methods_of(of[0], of[1])
        ):
            return True
    return False


def _news(link: Link) -> set[Asked]:
    """What is known now that those who asked for it were not told."""
    if link.flags or link.global_flags:
        return {*link.project.functions, *((file, "attributes", cls) for file, cls in link._attributes)}
    told = link.answered
    news: set[Asked] = {
        (file, "built", cls) for (file, cls), given in link.built.items()
        if any(given.get(i) != then and _matters(link, given.get(i)) for i, then in told.get((file, cls), {}).items())
    }  # fmt: skip
    news |= {(file, "wrapped", name) for file, name in link.wrapped}
    news |= {(one.file, "attribute", one.cls, one.name) for one in link.pending if link._is_news(one)}
    news |= {(file, "attribute", cls, name) for file, cls, name in link.keyed | link.by_state}
    news |= link.late
    filled = {key for key in link.puts if is_filled_by_batches(link, key)}
    news |= {(file, "attribute", cls, name) for file, cls, name in filled}
    return news | (link.asks_grads if link.skips_layers else set())


def _learned(link: Link) -> Learned:
    """What is known here so far."""
    outside = [one for of in link.outside.values() for one in of] + link.pending
    flags = link.flags, link.global_flags, link.skips_layers
    return Learned(link.wrapped, link.built, link.handlers, *flags, link.keyed, link.by_state, outside, link.puts)


def _learn(link: Link, of: Learned, own: Roots) -> None:
    """Adds what is known elsewhere."""
    link.wrapped |= of.wrapped
    for cls, given in of.built.items():
        link.built.setdefault(cls, {}).update(given)
    link.handlers += of.handlers
    link.flags |= of.flags
    link.global_flags |= of.global_flags
    link.skips_layers |= of.skips_layers
    link.keyed |= of.keyed
    link.by_state |= of.by_state
    for key, rows in of.puts.items():
        link.puts[key] |= rows
    ours = {n for n, _ in own}
    link.pending += [one for one in of.outside if one.root not in ours]


def _take(link: Link, found: Any) -> None:
    """Adds what was found elsewhere, as if all had been found here, one after the other."""
    reports, threads, groups, callers = found
    reports = sorted([*link.findings.values(), *reports], key=lambda r: r.when)
    link.findings, link.causes = {}, {}
    for report in reports:
        link.keep(report)
    link.threads += threads
    for ours, theirs in ((link.groups, groups), (link.callers, callers)):
        for key, functions in theirs.items():
            ours.setdefault(key, set()).update(functions)


class Helper:
    """A process that follows a share of the functions, as the first one does. `is_alive`: it has answered so far."""

    def __init__(self, link: Link, share: Roots, others: Sequence[Helper]) -> None:
        self.share, self.is_alive = share, True
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        ours = [self._pipe, *(h._pipe for h in others)]
        self._process = context.Process(target=_help, args=(link, share, theirs, ours))
        self._process.start()
        theirs.close()

    def answer(self, limit: float) -> Any:
        """What it says within so many seconds; None: nothing, and it will say nothing any more."""
        with suppress(EOFError, OSError):
            if self._pipe.poll(limit):
                return self._pipe.recv()
        self.end()
        return None

    def tell(self, known: Any) -> None:
        """Says what all have learned."""
        with suppress(OSError):
            self._pipe.send(known)

    def end(self) -> None:
        """Blocks: until the process is gone."""
        self.is_alive = False
        self._process.kill()
        self._process.join(_LIMIT)
        self._pipe.close()


def _help(link: Link, share: Roots, pipe: Connection, ours: Sequence[Connection]) -> None:
    for other in ours:  # else nobody would notice that the first process is gone
        other.close()
    with suppress(Exception, KeyboardInterrupt):  # the first process does it again, and says what is wrong
        _follow(link, share, 0)
        pipe.send(_learned(link))
        if pipe.poll(_LONGEST):
            _learn(link, pipe.recv(), share)
            _follow_again(link, share)
            pipe.send((list(link.findings.values()), link.threads, link.groups, link.callers))


def _judge_threads(link: Link) -> None:
    """A thread makes collectives of a group that other functions use too."""
    for thread in sorted(link.threads, key=lambda t: t.when):
        for effect in thread.effects:
            users = link.groups.get((thread.by[0], effect.group), set())
            others = {u for u in users if not _leads_to(link, thread.sort[1:3], u)}
            if effect.op not in GROUPS and (others or not (effect.group or thread.is_pool)):
                way = [(p.path, p.line, p.text) for p in effect.way]
                found = thread.found
                words = {**found.words, "collective": effect.way[-1].text}
                link.report(thread.path, Found(found.code, found.line, found.column, words, way))
                break


def _leads_to(link: Link, start: tuple[int, ...], end: tuple[int, int]) -> bool:
    """Whether a function is called by another one, over others perhaps."""
    todo, seen = [end], {end}
    while todo:
        one = todo.pop()
        if one == start:
            return True
        more = link.callers.get(one, set()) - seen
        seen |= more
        todo += more
    return False
