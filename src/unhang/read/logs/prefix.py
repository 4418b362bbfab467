"""What launchers, containers and collectors write before a line, told by its form or voted by the lines together; and the line without it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from unhang.read.logs import anchors_in
from unhang.read.logs.clock import Stamp, read_stamp
from unhang.read.logs.parts import TAGS, read_name, read_tags
from unhang.read.logs.whose import Head

RUN = 4
MAX_LABEL, MAX_LABELS = 80, 8
_LABEL_SHARE = 0.6

_ROLE_RANK = re.compile(r"\[[a-z][a-z_-]{0,30}?(\d{1,5})\]:")
# With nothing but a list behind it, it is Horovod's of the tensors that a rank misses.
_SRUN = re.compile(r" {0,6}(\d{1,7}): (?!\[[^\[\]]*\]?\s*$)")
_HYDRA = re.compile(r"\[(\d{1,6})\] ")
_RANK_BAR = re.compile(r"(\d{1,5}) \| (?=\d{4}-\d\d-\d\d \d\d:)")  # of AllenNLP's workers
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
    Form(_RANK_BAR, 0.5, "task", _are_tasks, in_a_row=True),
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


MAX_DEPTH = 10
MAX_SAMPLE = 2000

_TORCH_RANK = re.compile(r"\[rank(\d{1,7})\]: ?|rank(\d{1,7}): ")
_PRINTED_RANK = re.compile(r"\[rank(?:: |=)(\d{1,7})\]:? ")
_LOCAL_RANK = re.compile(r"\[(?:(?:default|trainer|worker)(\d{1,5})\]:|[Ll]ocal[ _-]?[Rr]ank[ :=]?(\d{1,5})\]:? )")
_MPIRUN = re.compile(
    r"\[(?:(?:[\w.-]{1,80}@)?\d{1,9},)?(?:mpirank:)?(\d{1,7})(?:,([\w.-]{1,80}))?\](?:\[[^\]\s]{1,80}\])?<std(?:out|err|diag)>: ?"
)
_POD = re.compile(r"\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?")
_HAMI = re.compile(r"\[(?=HAMI-core \w{1,8} ?\((?:pid:)?(\d{1,9})[: ])")
_KAIL = re.compile(r"[a-z0-9][\w.-]{0,62}/([a-z0-9][\w.-]{0,252})\[[a-z0-9][\w.-]{0,62}\]: ")
_ADDRESS = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}):(?: |$)")
_PAREN = re.compile(r"\(([^()\n]{0,100}(?:\([^()\n]{0,60}\)[^()\n]{0,60})?)\) ?")
_PAREN_NAMES = re.compile(r"\b(?:pid|rank|ip)=")
_PAREN_PID = re.compile(r"\bpid=(\d{1,9})")
_PAREN_RANK = re.compile(r"\brank=(\d{1,7})")
_PAREN_IP = re.compile(r"\bip=([\w.:-]{1,80})")
_SKYPILOT = re.compile(r"(head|worker\d{1,6}), rank=\d")
_STEP_NAME = re.compile(r"[^\t]{1,120}\t[^\t]{1,120}\t\ufeff?(?=\d{4}-)")
_STREAM = re.compile(r"(?:std(?:out|err) [FP]|\d\d[OE]\+?) ")
_JOURNAL = re.compile(r"([\w.-]{1,80}) (?:[\w@./():-]{1,80}\[(\d{1,9})\]: |(?=kernel: ))")
_MOST_HEAD = 100
_ICEFALL = re.compile(r"[A-Z]{4,8} \[\w{1,40}\.py:\d{1,5}\] \((\d{1,5})/\d{1,5}\) ")
# An engine's logger, before each line of a traceback that it writes.
_OF_A_TRACEBACK = re.compile(
    r"ERROR (?=(\d\d-\d\d \d\d:\d\d:\d\d) )[\d: -]{15}\[?[\w/.]{1,80}\.py:\d{1,6}\](?: (?=\s|$|Traceback \(|[\w.]{1,80}(?:Error|Exception|Timeout|Interrupt|Expired)\b"
    r"|Exception(?:: |$)|The above exception was |During handling of the above )|$)"
)
_COMPOSER = re.compile(r": rank(\d{1,7})\[(\d{1,9})\]")
_NCCL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}):(\d{1,9}):\d{1,9} \[(\d{1,4})\] ")
_UCX = re.compile(r"\[([\w.-]{1,80}):(\d{1,9}) {0,8}:\d{1,4}(?::\d{1,9})?\] ")
_LOGGER_TIME = re.compile(
    r"(?:\[(?:NeMo )?[DIWEFC] ?(?=\d)|\[[A-Za-z][\w|.: -]{0,60}\][ :]{0,3}|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]{1,4})(?=\[?\d)\[?"
)

_CLOCK_SHARE, _ROUNDS = 0.8, 3


class PrefixReader:
    """Takes the prefixes off the lines of one log. The first lines decide which of the doubtful forms are prefixes."""

    def __init__(self, sample: Sequence[str]) -> None:
        self._voted: tuple[Elected, ...] = ()
        self._strips_clock = False
        lines = [line for line in sample[:MAX_SAMPLE] if line.strip()]
        forms: list[Form | None] = []
        for _ in range(_ROUNDS):
            bodies = [self.read(line).body for line in lines]
            full = [body for body in bodies if body.strip()]
            candidates = (elected(form, full) for form in FORMS if form not in forms)
            chosen = next((found for found in candidates if found is not None), None)
            clocks = sum(body[:1].isdigit() and _is_clock(read_stamp(body)) for body in full)
            strips = not self._strips_clock and len(full) > 2 and clocks >= _CLOCK_SHARE * len(full)
            label = None if chosen or strips else site_labels(full)
            if not (chosen or strips or label):
                break
            self._strips_clock |= strips
            forms += [chosen.form] if chosen else []
            self._voted += tuple(found for found in (chosen, label) if found is not None)

    def read(self, line: str) -> Head:
        """What the prefixes of a line tell, in any order of stacking."""
        head = Head(line)
        for _ in range(MAX_DEPTH):
            if not self._step(head):
                break
        self._inside(head)
        return head

    def _step(self, head: Head) -> bool:
        """Takes one prefix off; returns whether there was one."""
        body = head.body
        lead = body[:1]
        if lead == " " and body[1:2].isdigit():  # collectors that pad: only before a date
            found = read_stamp(body, 1)
            if found is None or not found[0].has_date:
                return self._elected_step(head)
            head.body = body = body[1:]
            lead = body[0]
        if lead == "[":
            taken = _bracket(head, body)
        elif lead == "(":
            taken = _paren(head, body)
        elif lead.isdigit():
            taken = self._digit(head, body)
        elif lead.isalpha():
            taken = self._letter(head, body)
        else:
            taken = False
        return taken or self._elected_step(head)

    def _elected_step(self, head: Head) -> bool:
        for bit, voted in enumerate(self._voted):
            if not head.taken & 1 << bit and (match := voted.match(head.body)):
                head.taken |= 1 << bit
                if voted.field == "host":
                    head.host = head.host or match[1]
                elif voted.field:
                    setattr(head, voted.field, int(match[1]))
                head.body = head.body[match.end() :]
                return True
        return False

    def _digit(self, head: Head, body: str) -> bool:
        if match := _ADDRESS.match(body):
            head.host = head.host or match[1]
            head.body = body[match.end() :]
            return True
        found = read_stamp(body)
        if found is None:
            return False
        stamp, end = found
        if not stamp.has_date and not self._strips_clock:
            return False
        return _after_stamp(head, stamp, body[end:])

    def _letter(self, head: Head, body: str) -> bool:
        if body.startswith("rank") and (match := _TORCH_RANK.match(body)):
            head.torch_ranks.append(int(match[2]))
            head.body = body[match.end() :]
            return True
        if body[0] in "JFMASONDTW" and body[3:4] in " ," and (found := read_stamp(body)):
            return _after_stamp(head, found[0], body[found[1] :], is_syslog=True)
        if "\t" in body and (match := _STEP_NAME.match(body)):
            head.body = body[match.end() :]
            return True
        if body.startswith("ERROR ") and (match := _OF_A_TRACEBACK.match(body)):
            head.stamps += [found[0]] if (found := read_stamp(match[1])) else []
            head.body = body[match.end() :]
            return True
        if "]: " in body and (match := _KAIL.match(body)):
            head.host = head.host or match[1]
            head.body = body[match.end() :]
            return True
        return False

    def _inside(self, head: Head) -> None:
        """What the rest of the line tells without being a prefix: it stays in the body."""
        body = head.body
        if match := _NCCL.match(body):
            head.nccl_host, head.pid, head.device = match[1], int(match[2]), int(match[3])
        elif body.startswith("[") and (match := _UCX.match(body)):
            head.nccl_host, head.pid = match[1], int(match[2])
        elif (found := read_stamp(body)) is not None:
            head.stamps.append(found[0])
            if match := _COMPOSER.match(body, found[1]):
                head.rank, head.pid = int(match[1]), int(match[2])
        elif (match := _LOGGER_TIME.match(body)) and (found := read_stamp(body, match.end())):
            head.stamps.append(found[0])
        if ".py:" in body and (match := _ICEFALL.search(body, 0, _MOST_HEAD)):
            head.rank = int(match[1])


def _is_clock(found: tuple[Stamp, int] | None) -> bool:
    return found is not None and not found[0].has_date


def _bracket(head: Head, body: str) -> bool:
    if match := _TORCH_RANK.match(body):
        head.torch_ranks.append(int(match[1]))
    elif match := _LOCAL_RANK.match(body):
        head.local_rank = int(match[1] or match[2])
    elif (match := _MPIRUN.match(body)) is not None:
        head.task = int(match[1])
        head.host = head.host or match[2] or ""
    elif match := _PRINTED_RANK.match(body):
        head.rank = int(match[1])
    elif match := _POD.match(body):
        head.host = head.host or match[1]
    elif match := _HAMI.match(body):
        head.pid = int(match[1])
    elif body[1:2].isalnum() and (found := read_stamp(body, 1)):
        return _bracketed_stamp(head, found[0], body, found[1])
    else:
        return False
    head.body = body[match.end() :]
    return True


def _bracketed_stamp(head: Head, stamp: Stamp, body: str, end: int) -> bool:
    if tags := TAGS.match(body, end):
        read_tags(head, tags[0])
        end = tags.end()
    if body[end : end + 1] != "]" or not stamp.has_date:
        return False
    return _after_stamp(head, stamp, body[end + 1 :])


def _after_stamp(head: Head, stamp: Stamp, rest: str, is_syslog: bool = False) -> bool:
    """Takes a stamp off, unless it is the beginning of a logger's own line ("2025-02-18 02:54:01 - INFO - ...")."""
    bare = rest.lstrip(" :")
    is_head = rest[:1] not in ("", " ", "[", "\t") or (rest[:1] == " " and bare[:2] in ("- ", "| "))
    if is_head and not (
        bare[:1] == "[" and (_TORCH_RANK.match(bare) or _MPIRUN.match(bare) or _LOCAL_RANK.match(bare))
    ):
        return False
    head.stamps.append(stamp)
    head.body = bare if is_head else rest.removeprefix(" ").removeprefix("\t")
    if match := _STREAM.match(head.body):
        head.body = head.body[match.end() :]
    if (is_syslog or stamp.zone_s is not None) and (match := _JOURNAL.match(head.body)):
        head.host = head.host or match[1]
        head.pid = int(match[2]) if match[2] else head.pid
        head.body = head.body[match.end() :]
    return True


def _paren(head: Head, body: str) -> bool:
    match = _PAREN.match(body)
    if match is None or not _PAREN_NAMES.search(match[1]):
        return False
    inside = match[1]
    pid, rank, address = _PAREN_PID.search(inside), _PAREN_RANK.search(inside), _PAREN_IP.search(inside)
    if pid is None and rank is None:
        return False
    head.pid = int(pid[1]) if pid else head.pid
    if node := _SKYPILOT.match(inside):
        head.host = head.host or node[1]  # the rank there is the node's
    elif rank:
        head.rank = int(rank[1])
    else:
        read_name(head, inside.split(" pid=")[0])
    if address:
        head.host = head.host or address[1]
    head.body = body[match.end() :]
    return True
