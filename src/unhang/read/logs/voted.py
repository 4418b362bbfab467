"""Prefixes that ordinary text may look like: what the lines of a log together decide about them, and labels that nobody knows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from unhang.read.logs.patterns import anchors_in

RUN = 4
MAX_LABEL, MAX_LABELS = 80, 8
_LABEL_SHARE = 0.6

_ROLE_RANK = re.compile(r"\[[a-z][a-z_-]{0,30}?(\d{1,5})\]:")
# With nothing but a list behind it, it is Horovod's of the tensors that a rank misses.
_SRUN = re.compile(r" {0,6}(\d{1,7}): (?!\[[^\[\]]*\]?\s*$)")
_HYDRA = re.compile(r"\[(\d{1,6})\] ")
_BARE_LOCAL = re.compile(r"\[(\d{1,5})\]:(?=.)")
_TORCHX = re.compile(r"[a-z]\w{0,30}/(\d{1,5}) ")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,100}):(?: |$)")
_COMPOSE = re.compile(r"([a-z0-9][\w.-]{0,60}?) {1,30}\| ?")
_STERN = re.compile(r"([a-z0-9](?:[a-z0-9.-]{0,120})-[a-z0-9-]{1,60}) [a-z0-9][a-z0-9-]{0,62} ")
_MILABENCH = re.compile(r"([A-Za-z][\w.-]{0,60}) \[(?:stdout|stderr|message|data|start|end|config[\w.]*)\] ?")
_NUMBERED = re.compile(r" {0,8}(\d{1,7})\t")
_GREPPED = re.compile(r"(?:[\w./-]{1,200}?[:-])?(\d{1,7})[:-](?=.)")
_QUOTED = re.compile(r"(>) ?")
_INDENTED = re.compile(r"( {4}|\t)")
_NO_HOST = re.compile(
    r"(?:.*(?:Error|Exception|Warning|Interrupt|Iteration|Exit|Expired|Timeout|error|warning)|[A-Z]{2,}|.*\.(?:py|cpp|cc|cu|h|c|so|sh|yaml|json))$"
)
# What stands at the beginning of a line only: before it stands a label.
_BEGINS = re.compile(r"Traceback \(most recent call last\):| {2}File \"[^\"\n]+\", line \d|\[rank\d{1,7}\]:")


def _few(names: Counter[str], lines: int) -> bool:
    return len(names) <= max(2, lines // 3)


def _are_tasks(names: Counter[str], lines: int) -> bool:
    """Whether numbers before lines are ranks; steps of a loop come once each and in order."""
    numbers = [int(n) for n in names]
    in_a_row = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return lines > 1 and not (in_a_row and len(numbers) == names.total())


def _are_several_tasks(names: Counter[str], lines: int) -> bool:
    """NCCL itself prints the number of a device like this."""
    return len(names) > 1 and _are_tasks(names, lines)


def _are_hosts(names: Counter[str], lines: int) -> bool:
    good = [n for n in names if any(c.isdigit() for c in n) and not _NO_HOST.match(n) and not n.isdigit()]
    return len(good) == len(names) and _few(names, lines) and lines > 1


def _count_up(names: Counter[str], lines: int) -> bool:
    """Whether they number the lines, as editors and grep do."""
    numbers = [int(n) for n in names]
    return lines > 3 and len(numbers) == lines and all(b > a for a, b in itertools.pairwise(numbers))


def _are_pods(names: Counter[str], lines: int) -> bool:
    return _few(names, lines) and lines > 2


@dataclass(frozen=True)
class Form:
    """A prefix that counts only where a share of all lines has it, or so many in a row. `field`: what of a line it tells."""

    regex: re.Pattern[str]
    share: float
    field: str
    accept: Callable[[Counter[str], int], bool]
    in_a_row: bool = False


FORMS = (
    Form(_NUMBERED, 0.9, "", _count_up),
    Form(_GREPPED, 0.9, "", _count_up),
    Form(_QUOTED, 0.8, "", _are_pods),
    Form(_INDENTED, 0.8, "", _are_pods),
    Form(_SRUN, 0.9, "task", _are_tasks, in_a_row=True),
    Form(_HYDRA, 0.9, "task", _are_several_tasks),
    Form(_BARE_LOCAL, 0.8, "local_rank", _are_tasks, in_a_row=True),
    Form(_ROLE_RANK, 0.6, "local_rank", _are_tasks),
    Form(_TORCHX, 0.8, "local_rank", _are_tasks),
    Form(_HOST, 0.6, "host", _are_hosts, in_a_row=True),
    Form(_COMPOSE, 0.8, "host", _are_pods),
    Form(_STERN, 0.8, "host", _are_pods),
    Form(_MILABENCH, 0.8, "host", _are_pods),
)


@dataclass(frozen=True)
class Elected:
    """A form that is a prefix in this log, with the names that it has there; another number in a name is another of the same."""

    form: Form | None
    regex: re.Pattern[str]
    field: str
    shapes: frozenset[str] = frozenset()

    def match(self, body: str) -> re.Match[str] | None:
        """The prefix of a line."""
        match = self.regex.match(body)
        return match if match and (not self.shapes or _shape(match[1]) in self.shapes) else None


def elected(form: Form, bodies: Sequence[str]) -> Elected | None:
    """The form with its names, where the lines speak for it."""
    found = [form.regex.match(body) for body in bodies]
    names = Counter(match[1] for match in found if match)
    count = names.total()
    if not (count and count >= form.share * len(bodies) and form.accept(names, count)):
        names = Counter(_in_rows(found)) if form.in_a_row and count >= RUN else Counter()
        if not names or not form.accept(names, names.total()):
            return None
    return Elected(form, form.regex, form.field, frozenset(map(_shape, names)))


def _in_rows(found: Sequence[re.Match[str] | None]) -> Iterator[str]:
    """The names in rows of lines that all have the prefix."""
    row: list[str] = []
    for match in (*found, None):
        if match:
            row.append(match[1])
            continue
        if len(row) >= RUN:
            yield from row
        row = []


def site_labels(bodies: Sequence[str]) -> Elected | None:
    """Labels that nobody knows: the same text but for its numbers before most lines, also before what only begins a line."""
    votes: Counter[str] = Counter()
    for body in bodies:
        if body[0] != "{" and (match := _BEGINS.search(body, 1, MAX_LABEL + 40)) and match.start() <= MAX_LABEL:
            label = body[: match.start()]  # behind it the line may be indented
            votes[_shape(label if label[-2:].strip() else f"{label.rstrip()} ")] += 1
    labels = []
    for label, _ in votes.most_common(MAX_LABELS):
        if label.strip() and label.strip()[-1:].isprintable() and not anchors_in(label):
            labels.append(re.sub("0", r"\\d+", re.escape(label)))
    if not labels:
        return None
    regex = re.compile("(?:" + "|".join(sorted(labels, key=len, reverse=True)) + ")")
    found = [regex.match(body) for body in bodies]
    is_usual = sum(map(bool, found)) >= max(2, _LABEL_SHARE * len(bodies)) or _longest_row(found) >= RUN
    return Elected(None, regex, "") if is_usual else None


def _longest_row(found: Sequence[re.Match[str] | None]) -> int:
    longest = row = 0
    for match in found:
        row = row + 1 if match else 0
        longest = max(longest, row)
    return longest


def _shape(text: str) -> str:
    return re.sub(r"\d+", "0", text)
