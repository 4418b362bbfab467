"""Several jobs in one log: where a launcher starts anew, which of them is judged, and how it ended."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from unhang.model import LogEvent, LogLine, RaisedError, Unavailable
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.launchers import has_others_at_work
from unhang.read.logs import all_patterns, events_of, is_echo, table

# How a log shows in its program's own words that the job came to its end: a code that the shell was asked for, a summary of tests, a last word, a full count.

_MOST_BEHIND, _MOST_CHARS, _MOST_WORDS, _LEAST_MOVES = 60, 300, 160, 2
_ASKED = lazy_pattern(r"\becho\b.*\$\?[\"' ;]*$")
_ANSWER = lazy_pattern(r"(?:^|[\s=:])(\d{1,3})[\"']?\s*$")
_CODES = lazy_pattern(r"^(?:rc|RC|exit[ _]?(?:codes?|status(?:es)?))[ :=]+(\d{1,3}(?:[ ,]+\d{1,3})*)$")
_WHOLE = (
    r"(?:train(?:ing|er|ed)?|run|job|engine|experiment|program|script|fit(?:ting)?|fine-?tun\w+|pretrain\w+"
    r"|benchmark|everything|all (?:epochs|steps|iterations|tasks|tests|ranks|workers))"
)
_SAYS_IT_ENDED = r"(?:complet(?:e|ed|es)|finish(?:ed|es)?|done|over|ended|succeeded|concluded)"
# That the whole is over: `Finish training.`, `End of run`, `engine run complete`; `Done!`, `finished, 200 iterations`; `Training time 1:56:41`.
_LAST_WORD = lazy_pattern(
    rf"\b{_WHOLE}\b(?: \w+){{0,3}} {_SAYS_IT_ENDED}\b"
    rf"|\b(?:finish(?:ed|es)?|complet(?:ed|es)|end(?:ed)? of|done with|ends?) (?:the |all |of )?(?:\w+ )?{_WHOLE}\b"
    r"|^(?:all )?(?:done|finished|completed|success|bye|goodbye)\b(?!:? ?(?:loading|init|prepar|build|compil|reading|eval|valid|saving|writing|checkpointing))"
    rf"|^(?:(?:total|overall|wall|elapsed) )*(?:{_WHOLE} )(?:(?:wall|run)[- ]?)?time\b\W{{0,6}}(?:of |was |is )?\d"
    r"|^(?:finish|end|exit|fin)\W*$|^(?:total|overall|elapsed|wall)(?:[ -](?:run|wall|elapsed))?[ -]?time\b\W{0,6}(?:of |was |is )?\d|^(?:all (?:tests|checks) )?pass(?:ed)?\b\W*$"
    r"|\bprocess(?:ing)?[ _]group (?:was |is )?(?:destroyed|finalized)|\b(?:destroyed|finalized) (?:the )?process(?:ing)?[ _]group",
    re.IGNORECASE,
)
_OF_A_PART = lazy_pattern(
    r"\b(?:not|never|no|before|until|when|will|would|if|error|fail\w*|abort\w*|kill\w*|interrupt\w*|cancel\w*|wait\w*|stuck|valid\w*|eval\w*"
    r"|dataset|data|shard\w*|split|files?|batch\w*|token\w*|preproc\w*|load\w*|compil\w*|init\w*|setup|set up|warm\w*|download\w*"
    r"|epoch \d+|step \d+|restart\w*|profil\w*|import\w*|prepar\w*)\b",
    re.IGNORECASE,
)
_HEADS = lazy_pattern(
    r"^[\s|>*#=.-]*(?:(?:\[[^\]]{1,80}\]|\([^)]{1,60}\)|[\d:.,/TZ-]{6,30}|DEBUG|INFO|WARNING|NOTICE|I\d{4}|[\w.]{1,60}:(?= )|[\w.]{1,40} (?=-)|-|\|)[\s:|-]+)+"
)
_SENTENCES = re.compile(r"[.!;](?:\s+|$)")
_METRICS = lazy_pattern(r"\*{3,} ?(?:train|eval|val|test|predict)\w* metrics ?\*{3,}\s*$")
_OF_A_ROUND = lazy_pattern(r"\b(?:test|epoch|val\w*|step|iter\w*|eval\w*)\b", re.IGNORECASE)
# What is printed when a process or a command is at its end: wandb's summary, the metrics of Transformers, MLPerf's marks, `time`, a prompt that is back.
_AT_EXIT = lazy_pattern(
    r"^wandb: (?:Synced \d|\W{0,4}View run .* at|Find logs at)|\"key\": \"run_stop\".*\"success\""
    r"|^real\t? *\d+m[\d.,]+s$|\bJobState=COMPLETED\b|^(?:\([\w.-]+\) ?)?[\w.-]+@[\w.-]+[:\s][^$#]{0,80}[$#]$"
)
_TESTS = lazy_pattern(
    r"^Ran \d+ tests? in [\d.]+s|^=+ (?=.*\bpassed\b)(?!.*\b(?:failed|errors?)\b).* in [\d.]+s\b.*=+$"
)
_COUNT = lazy_pattern(r"(?<![\w.:/-])(\d{1,9}) ?/ ?(\d{1,9})(?![\w./:-])")
_NUMBER, _NUMBERED = re.compile(r"\d+"), re.compile(r"\d")
_EPOCH = lazy_pattern(r"\bepochs?\b", re.IGNORECASE)
_EPOCH_OF = lazy_pattern(r"\bepochs?\b\W{0,4}(\d{1,6}) ?(?:/|of) ?(\d{1,6})\b", re.IGNORECASE)
_INNER = lazy_pattern(r"load|shard|valid|eval|test|token|fetch|download|batch|map\b|predict|generat", re.IGNORECASE)
# Somebody looks at, or ends, a process that did not leave after its last word.
_STILL_THERE = lazy_pattern(
    r"\bgdb\b|py-spy|\bpstack\b|strace -|^#\d+ +0x|^Thread (?:0x|\d+ )|^\^C|\bkill -|\b[Hh]ang(?:s|ing)?\b|\bstuck\b|nvidia-smi|^\S*[$#] (?:ps|top)\b"
)
_STARTS = ("work.saving", "work.preparing", "work.evaluating")


def code_asked(lines: Sequence[LogLine]) -> tuple[int, str] | None:
    """The exit code that a shell was asked for at the end of a log (`echo $?`), with its line; of several (`rc 0 1`) the worst. None where there is none."""
    said = [x.text.strip() for x in lines[-_MOST_BEHIND:] if x.text.strip()]
    for asked, answer in zip(said[-4:], said[-3:], strict=False):
        if "$?" in asked and _ASKED.search(asked) and (code := _ANSWER.search(answer)):
            return int(code[1]), answer
    codes = _CODES.search(said[-1]) if said else None
    return (max(map(int, _NUMBER.findall(codes[1]))), said[-1]) if codes else None


def last_word(events: Sequence[LogEvent], lines: Sequence[LogLine]) -> tuple[int, str] | None:
    """Where a program that had moved said at the end of its log that the whole is over, and the line; None where one rank that moved did not say so."""
    begin = max(0, len(lines) - _MOST_BEHIND)
    found = _tests_passed(lines, begin) or _full_count(events, lines, begin)
    moved = {e.rank for e in events if e.is_progress}
    if found is None and sum(e.is_progress for e in events) >= _LEAST_MOVES:
        said = [(i, x) for i, x in enumerate(lines[begin:], begin) if is_last_word(x.text)]
        ranks = {x.rank for _, x in said}
        if said and (ranks >= moved or (ranks & {None, 0} and moved <= {None, 0})):
            found = said[-1][0]
    if found is None or any(_STILL_THERE.search(x.text[:_MOST_CHARS]) for x in lines[found + 1 :]):
        return None
    return found, lines[found].text.strip()[:200]


def is_last_word(text: str) -> bool:
    """Whether a line of a program says that the whole is over: not a part of it, not that something else than its end came."""
    head = _HEADS.match(text[:_MOST_CHARS])
    if _AT_EXIT.search(text[:_MOST_CHARS].strip()) or _METRICS.search(text[:_MOST_CHARS]):
        return True
    if head is not None and _OF_A_ROUND.search(head[0]):
        return False
    bare = text[head.end() if head else 0 : _MOST_CHARS].strip()
    parts = _SENTENCES.split(bare) if len(bare) < _MOST_WORDS else ()
    return any(_LAST_WORD.search(part) and not _OF_A_PART.search(part) for part in parts)


def _tests_passed(lines: Sequence[LogLine], begin: int) -> int | None:
    """The place of the last summary of a test runner: of unittest with an `OK` below it, where none says otherwise."""
    at = [i for i in range(begin, len(lines)) if _TESTS.search(lines[i].text)]
    below = [next((x.text.strip() for x in lines[i + 1 : i + 4] if x.text.strip()), "") for i in at]
    is_well = all(
        not lines[i].text.startswith("Ran ") or word.startswith("OK") for i, word in zip(at, below, strict=True)
    )
    return at[-1] if at and is_well else None


def _full_count(events: Sequence[LogEvent], lines: Sequence[LogLine], begin: int) -> int | None:
    """Where a program came to the number of steps or epochs that it had told itself, and went on to say what comes behind it.

    A loop within another one comes to its end many times: where epochs are told, these count. A start of work without its end is no end.
    """
    moves = [e for e in events if e.is_progress or e.kind == "progress.unbounded"]
    if len(moves) < _LEAST_MOVES:
        return None
    last = moves[-1]
    counts = list(_counts(last))
    if not counts or any(done != total for done, total in counts) or last.order < begin:
        return None
    told = [_EPOCH_OF.search(e.text) for e in (*moves[:-1], last)]
    has_epochs = any(_EPOCH.search(e.text) for e in moves)
    if has_epochs and not (told[-1] and told[-1][1] == told[-1][2] != "1"):
        return None
    alike = [e for e in moves if _name(e) == _name(last)]
    full = [list(_counts(e)) == counts for e in alike]
    first = alike[full.index(True)].order
    if not has_epochs and (_INNER.search(_name(last)) or not all(full[full.index(True) :])):
        return None
    behind = [i for i in range(first + 1, len(lines)) if lines[i].text.strip() and i != last.order]
    open_work = [e for e in events if e.order > first and e.kind in (*_STARTS, "work.saved")]
    if not behind or (open_work and open_work[-1].kind != "work.saved" and open_work[-1].order >= max(behind)):
        return None
    return max(behind[-1], last.order)


def _counts(event: LogEvent) -> Iterator[tuple[str, str]]:
    yield from ((m[1], m[2]) for m in _COUNT.finditer(event.text[:_MOST_CHARS]) if m[2] != "1")


def _name(event: LogEvent) -> str:
    """A line up to its first number, or bar."""
    return _NUMBERED.split(event.text, 1)[0]


MAX_STARTS = 64
MAX_NAMED = 4
_STARTED, _TRIED = "launchers.started", "nccl.p2p_off"
ANOTHER_START = "start of a launcher"
_MARKS = ("+ ", "$ ", "# ", "> ")
_SPEAKING = ("root", "witness")
_OVER, _SERVES = ("ending.finished", "work.ended", "ending.succeeded"), "work.serving"


@dataclass(frozen=True)
class Part:
    """The lines between two starts, by their indexes. `is_launched`: it begins with a launcher of several processes."""

    first: int
    stop: int
    is_launched: bool = False


class Weight(NamedTuple):
    """What a part says: that something failed or hung, that it ended well or moved, or anything at all."""

    failed: str
    is_over: bool
    moved: bool
    speaks: bool


def parts_of(bodies: Sequence[str], writers: Callable[[int], Hashable]) -> list[Part]:
    """The parts of a log, one for each start. What stands before the first start belongs to a job of its own.

    Only a shell that echoes its commands, or a prompt, is believed: other programs' banners come once for each node. A start
    counts if the writer of the line is one that wrote something before: the shells of several nodes each begin one part of a job.
    """
    starts = [i for i, body in enumerate(bodies) if _is_start(body)][:MAX_STARTS]
    if not starts:
        return [Part(0, len(bodies))]
    known, cuts = set[Hashable](), list[int]()
    for i in starts:
        if not cuts or writers(i) in known:
            cuts += [] if _is_trial(bodies[cuts[-1] if cuts else 0 : i], bodies[i]) else [i]
        known.add(writers(i))
    borders = [0, *(i for i in cuts if i), len(bodies)]
    return [Part(first, stop, _is_launched(bodies[first])) for first, stop in itertools.pairwise(borders)]


def _is_start(body: str) -> bool:
    """A command that starts processes, as a shell echoes it."""
    is_echoed = body[:120].lstrip("+").find(" ") >= 0 and any(m in body[:160] for m in _MARKS)
    return is_echoed and bool(_pattern("launchers", _STARTED).search(body))


def _is_trial(before: Sequence[str], body: str) -> bool:
    """Whether a command is an earlier one without direct traffic between devices: what both did is judged together."""
    if not (off := _pattern("nccl", _TRIED)).search(body):
        return False
    words = {
        word for word in re.split(r" (?:\d?>|\||&)", body)[0].split() if "=" not in word and word[0] not in "-+$#>"
    }
    same = [x for x in before if x.startswith(_MARKS) and words <= set(x.split())]
    return len(words) > 1 and bool(same) and not off.search(same[-1])


def _is_launched(body: str) -> bool:
    match = _pattern("launchers", _STARTED).search(body)
    return match is not None and not match["launcher"].startswith("python")


@cache
def _pattern(name: str, kind: str) -> re.Pattern[str]:
    return next(row.compiled for row in table(name) if row.kind == kind)


@cache
def _roles() -> dict[str, str]:
    return {row.kind: row.role for row in all_patterns()}


def weight_of(lines: Sequence[LogLine], errors: Sequence[RaisedError], exits: int) -> Weight:
    """What a part says."""
    events = events_of(lines)
    said = next((e.text.strip() for e in events if e.says), "")
    raised = f"{errors[-1].type}: {errors[-1].message}".splitlines()[0] if errors else ""
    failed = raised or said or ("a process failed" if exits else "")
    is_over = any(e.kind in _OVER for e in events)
    moved = sum(e.is_progress for e in events) > 1
    speaks = any(_roles().get(e.kind) in _SPEAKING for e in events)
    return Weight(failed, is_over, moved, speaks)


def judged_part(weights: Sequence[Weight], parts: Sequence[Part]) -> int:
    """The last one that says anything; one that ended well leaves the judgement to a job that was launched after it."""
    last = len(parts) - 1
    chosen = next((i for i in range(last, -1, -1) if any(weights[i])), last)
    if weights[chosen].is_over and not weights[chosen].failed:
        return next((i for i in range(last, chosen, -1) if parts[i].is_launched), chosen)
    return chosen


def others_named(
    spans: Sequence[tuple[int, int]], weights: Sequence[Weight], chosen: int, name: str
) -> tuple[Unavailable, ...]:
    """The parts that are not judged, each with how it ended. `spans`: the first and the last line of each."""
    found = []
    for i, (first, last) in enumerate(spans):
        if i == chosen or not any(weights[i]):
            continue
        failed, is_over = weights[i].failed, weights[i].is_over
        how = f"it failed: {failed[:120]}" if failed else "it ended well" if is_over else "nothing in it failed"
        when = "an earlier" if i < chosen else "a later"
        judged = f"lines {spans[chosen][0]} to {spans[chosen][1]} are judged"
        found.append(Unavailable(f"lines {first} to {last} of {name}", f"{when} {ANOTHER_START}; {how}; {judged}"))
    return tuple(found[-MAX_NAMED:])


STILL_PRINTED = 2
SUMMED_UP = 1  # a launcher may tell the result of the last step once more
MAX_BEHIND = 60  # lines of a summary, and what interpreters print when they go
_BEGINS = ("launchers.started", "elastic.launch_config", "elastic.rendezvous_done", "elastic.restart")
_OF_TRAINING = ("ending.finished", "work.ended")
_OF_WORKERS = "ending.succeeded"
_OF_A_PROCESS = "ending.not_destroyed"  # printed by the exit of a process, after an exception too
_CODE = "ending.code"
_OF_LAUNCHERS = ("ending.", "launchers.", "elastic.")


class End(NamedTuple):
    """The exit code that the log tells or stands for, and the line that does."""

    code: int
    line: str


def end_of(events: Sequence[LogEvent], troubles: Iterable[int], log: Sequence[LogLine]) -> End | None:
    """How the job ended; None where its log does not tell. `troubles`: the places of exceptions in it.

    It ended well where the end is told after everything that failed, and the training had moved on after that; where nothing failed, also
    where processes left with a process group that they had not destroyed, and nothing comes after it. An exit code that somebody
    printed is believed alone, but a 0 behind a failure after which nothing moved: that may be of a pipe or a container. What is told before
    a failure, or before more training, is not the job's end: a rank may be done before others fail, and a helper before the job begins.
    """
    if stood_until_tried(events):
        return None
    last, lines = max([*troubles, *(e.order for e in events if e.says)], default=-1), len(log)
    asked = code_asked(log)
    if asked is not None and not (asked[0] == 0 and _is_a_failure_the_end(events)):
        return End(*asked)
    final = max(last, lines - 1 - MAX_BEHIND, *(e.order for e in events if e.kind.startswith(_BEGINS)), -1)
    codes = [e for e in events if e.kind == _CODE and e.order > max(last, lines - 1 - MAX_BEHIND)]
    if codes and not (_code(codes[-1]) == 0 and _is_a_failure_the_end(events)):
        return End(_code(codes[-1]), codes[-1].text.strip()[:200])
    marks_found = [
        e for e in events if e.order >= final and e.order > last and (e.kind == _OF_WORKERS or e.kind in _OF_TRAINING)
    ]
    if killed_at_work(events) or has_others_at_work(events):
        return None
    if last < 0:
        marks_found += [e for e in events if e.order >= final and e.kind == _OF_A_PROCESS]
    steps = {e.order for e in events if e.is_progress}
    marks = [e for e in marks_found if sum(order > e.order for order in steps) <= SUMMED_UP]
    if last >= 0 and moved_after(events, last) <= STILL_PRINTED:
        return None
    if marks and any(e.kind in ("ending.listed", "ending.looked_at") and e.order > marks[-1].order for e in events):
        return None  # somebody saw that it was still there
    word = None if marks else last_word(events, log)
    if word is not None and word[0] > last and not any(order > word[0] for order in steps):
        return End(0, word[1])
    return End(0, marks[-1].text.strip()[:200]) if marks else None


def stood_until_tried(events: Sequence[LogEvent]) -> tuple[LogEvent, ...]:
    """The last direct connection of devices after which nothing moved, and the command that does without: how that one ended is not how the job did."""
    off = next((e for e in events if e.kind == _TRIED), None)
    before = [e for e in events if off is not None and e.order < off.order]
    direct = [e for e in before if e.kind == "nccl.channel_p2p"]
    moved = any(e.is_progress or e.kind in (*_OVER, _SERVES) for e in before if direct and e.order > direct[0].order)
    return (direct[-1], off) if off is not None and direct and not moved else ()


def killed_at_work(events: Sequence[LogEvent]) -> list[LogEvent]:
    """What a launcher says of the processes that it had to kill, where others of its own had come to their end."""
    left = {e["left"] for e in events if e.kind == _OF_WORKERS and e["left"]}
    return [e for e in events if left and e.kind == "ending.killing" and e["pid"] not in left]


# A line of training, and what a server of models prints for each answer.
_OF_A_STEP = lazy_pattern(r"\bloss|\bl_pix|\beta\b|\w/s\b|\blr\b|\bgrad_?norm|throughput", re.IGNORECASE)
_OF_AN_ANSWER = lazy_pattern(r"HTTP/\d\.\d\" 200\b| POST /\S{1,120} 200 [\d.]+ms\b|generation throughput: (?!0\.0 )")
_VALUES = lazy_pattern(r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?|[\s|#=>\u2580-\u259f-]+")
_WENT_WRONG = lazy_pattern(
    r"\b(?:errors?|fail(?:ed|ure|s)|killed|fatal|abort(?:ed|ing)?|terminated|core dumped)\b", re.IGNORECASE
)
_LEAST_STEPS, _LEAST_ANSWERS, _USUALLY_BEHIND = 4, 2, 5


def steps_at_the_end(events: Sequence[LogEvent], log: Sequence[LogLine]) -> int:
    """How many steps a program told after the last failure, up to the end of its log; 0 where they stop before it, or are too few to tell.

    A step is an event of progress, or a line of training that comes again and again with other numbers. They go to the end where
    no more lines stand behind the last one than between two of them, and nobody looks at the process there.
    """
    last = max((e.order for e in events if e.says), default=-1)
    begin = next((e.order for e in events if e.kind == _SERVES), len(log))
    steps = {e.order for e in events if e.order > last and (e.is_progress or e.kind == "progress.unbounded")}
    alike: dict[tuple[int | None, str], list[int]] = {}
    for i, line in enumerate(log[last + 1 :], last + 1):
        text = line.text[:_MOST_CHARS]
        if i > begin and _OF_AN_ANSWER.search(text):
            steps.add(i)
        elif _OF_A_STEP.search(text):
            alike.setdefault((line.rank, _VALUES.sub("#", text)), []).append(i)
    steps.update(i for places in alike.values() if len(places) >= _LEAST_STEPS for i in places)
    if len(steps) < (_LEAST_STEPS if begin == len(log) else _LEAST_ANSWERS):
        return 0
    told = sorted(steps)
    rhythm = max(b - a for a, b in itertools.pairwise(told)) + _USUALLY_BEHIND
    behind = [line.text[:_MOST_CHARS] for line in log[told[-1] + 1 :] if line.text.strip()]
    is_other = any(_STILL_THERE.search(text) or _WENT_WRONG.search(text) for text in behind)
    return 0 if is_other or len(behind) > rhythm else len(told)


_ENDED_WAIT = "watchdog.timeout"


def _is_a_failure_the_end(events: Sequence[LogEvent]) -> bool:
    """Whether nothing moved on after a failure that is no echo of a peer's end, or after a wait whose end the watchdog made the process's."""
    own = (e for e in reversed(events) if e.says == "crash" and not e.kind.startswith(_OF_LAUNCHERS))
    failed = next((e.order for e in own if not is_echo(e.text)), -1)
    failed = max(failed, next((e.order for e in reversed(events) if e.kind == _ENDED_WAIT and e.says), -1))
    return failed >= 0 and not moved_after(events, failed)


def moved_after(events: Iterable[LogEvent], order: int, rank: int | None = None) -> int:
    """How many steps were told after a line, by this rank if one is given; by a bar, drawn over and over on one line, how many it counted: drawn once more, none."""
    moves = [e for e in events if e.is_progress and (rank is None or e.rank == rank)]
    after, counted, redrawn = [e for e in moves if e.order > order], 0, set[int]()
    for bar in (e for e in after if e.kind == "progress.bar"):
        done = bar.number("done") or 0
        before = [e.number("done") or 0 for e in moves if e.order <= order and e["total"] == bar["total"] and e["done"]]
        counted = max(counted, done - max(before, default=done) - 1)
        redrawn |= {bar.order} if before[-1:] == [done] else set()
    return sum(e.order not in redrawn for e in after) + counted


def _code(event: LogEvent) -> int:
    return next(
        (code for name in ("code", "state", "worker", "alone", "traced") if (code := event.number(name)) is not None), 0
    )
