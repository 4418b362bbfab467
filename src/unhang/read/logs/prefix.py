"""What launchers, containers and collectors write before a line: who printed it, where and when; and the line without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from unhang.read.logs.clock import Stamp, read_stamp
from unhang.read.logs.voted import FORMS, Elected, Form, elected, site_labels

MAX_DEPTH = 10
MAX_SAMPLE = 2000
MAX_BAR_CHARS = 400

_TORCH_RANK = re.compile(r"\[rank(\d{1,7})\]: ?|rank(\d{1,7}): ")
_PRINTED_RANK = re.compile(r"\[rank(?:: |=)(\d{1,7})\]:? ")
_LOCAL_RANK = re.compile(r"\[(?:default|trainer|worker)(\d{1,5})\]:")
_MPIRUN = re.compile(
    r"\[(?:(?:[\w.-]{1,80}@)?\d{1,9},)?(?:mpirank:)?(\d{1,7})(?:,([\w.-]{1,80}))?\](?:\[[^\]\s]{1,80}\])?<std(?:out|err|diag)>: ?"
)
_POD = re.compile(r"\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?")
_KAIL = re.compile(r"[a-z0-9][\w.-]{0,62}/([a-z0-9][\w.-]{0,252})\[[a-z0-9][\w.-]{0,62}\]: ")
_ADDRESS = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}):(?: |$)")
_PAREN = re.compile(r"\(([^()\n]{0,100}(?:\([^()\n]{0,60}\)[^()\n]{0,60})?)\) ?")
_PAREN_NAMES = re.compile(r"\b(?:pid|rank|ip)=")
_PAREN_PID = re.compile(r"\bpid=(\d{1,9})")
_PAREN_RANK = re.compile(r"\brank=(\d{1,7})")
_PAREN_IP = re.compile(r"\bip=([\w.:-]{1,80})")
_SKYPILOT = re.compile(r"(head|worker\d{1,6}), rank=\d")
_TENSOR_NAME = re.compile(r"(?:^|[ _])TP(\d{1,5})(?:_EP\d+)?(?= |$)")
_TAGS = re.compile(r"(?: (?:TP|DP|PP|EP|CP|SP|ATTN_DP|MOE_EP)\d{1,5})+(?=\])")
_STEP_NAME = re.compile(r"[^\t]{1,120}\t[^\t]{1,120}\t\ufeff?(?=\d{4}-)")
_STREAM = re.compile(r"(?:std(?:out|err) [FP]|\d\d[OE]\+?) ")
_JOURNAL = re.compile(r"([\w.-]{1,80}) (?:[\w@./():-]{1,80}\[(\d{1,9})\]: |(?=kernel: ))")
_MOST_HEAD = 100
_ICEFALL = re.compile(r"[A-Z]{4,8} \[\w{1,40}\.py:\d{1,5}\] \((\d{1,5})/\d{1,5}\) ")
_COMPOSER = re.compile(r": rank(\d{1,7})\[(\d{1,9})\]")
_NCCL = re.compile(r"([A-Za-z0-9][\w.-]{0,80}):(\d{1,9}):\d{1,9} \[(\d{1,4})\] ")
_UCX = re.compile(r"\[([\w.-]{1,80}):(\d{1,9}) {0,8}:\d{1,4}(?::\d{1,9})?\] ")
_LOGGER_TIME = re.compile(
    r"(?:\[(?:NeMo )?[DIWEFC] ?(?=\d)|\[[A-Za-z][\w|.: -]{0,60}\][ :]{0,3}|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]{1,4})(?=\[?\d)\[?"
)
_GLUED = re.compile(
    r"\[rank\d{1,7}\]:(?=\[[DIWEFC][ \d]| )|\[[DIWEFC](?:\d{3,4} [\d:.]+)? \w+\.(?:cpp|cc|cu|h|hpp):\d+\]"
)
_RAN_INTO = re.compile(
    r"(?<=[^\s(\[{<\"'=,:])(?:\[rank\d{1,7}\]: |\[rank\d{1,7}\]:(?=\[[DIWEFC][ \d])|\[default\d{1,5}\]:)"
)
_BAR = re.compile(r"\d%\||\d(?:it|ex|examples)? ?\[\d|(?:it/s|s/it|/s)\]?$|\?\]$")


@dataclass(slots=True)
class Head:
    """What the prefixes of one line tell. `body`: the line without them; `stamps`: its times, the outermost first.

    `torch_ranks`: ranks in torch's own form, the outermost first; the innermost is global. `rank`: a global rank told in
    another form. `task`: number of the launcher's task (mpirun, srun), a rank where a task is one. `local_rank` counts
    within a node; `tensor_rank` within a tensor-parallel group, `replica` numbers these groups, or parts of one. `taken`: the elected forms that were taken off, as bits.
    """

    body: str
    torch_ranks: list[int] = field(default_factory=list)
    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    tensor_rank: int | None = None
    replica: int | None = None
    host: str = ""
    pid: int | None = None
    device: int | None = None
    nccl_host: str = ""
    stamps: list[Stamp] = field(default_factory=list)
    taken: int = 0


_CLOCK_SHARE = 0.8
_ROUNDS = 3


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


def split_glued(body: str) -> tuple[str, str]:
    """A progress bar, or what another process wrote, and the message that a rank wrote behind it on the same line; else ("", the line)."""
    if "]:" in body and (match := _RAN_INTO.search(body)):
        return body[: match.start()].rstrip(), body[match.start() :]
    if "%|" not in body and "it/s" not in body and "s/it" not in body and "/s]" not in body:
        return "", body
    for match in _GLUED.finditer(body):
        start = match.start()
        if start and _BAR.search(body, max(0, start - MAX_BAR_CHARS), start):
            return body[:start].rstrip(), body[start:]
    return "", body


def _is_clock(found: tuple[Stamp, int] | None) -> bool:
    return found is not None and not found[0].has_date


def _bracket(head: Head, body: str) -> bool:
    if match := _TORCH_RANK.match(body):
        head.torch_ranks.append(int(match[1]))
    elif match := _LOCAL_RANK.match(body):
        head.local_rank = int(match[1])
    elif (match := _MPIRUN.match(body)) is not None:
        head.task = int(match[1])
        head.host = head.host or match[2] or ""
    elif match := _PRINTED_RANK.match(body):
        head.rank = int(match[1])
    elif match := _POD.match(body):
        head.host = head.host or match[1]
    elif body[1:2].isalnum() and (found := read_stamp(body, 1)):
        return _bracketed_stamp(head, found[0], body, found[1])
    else:
        return False
    head.body = body[match.end() :]
    return True


def _bracketed_stamp(head: Head, stamp: Stamp, body: str, end: int) -> bool:
    if tags := _TAGS.match(body, end):
        tensor = _TENSOR_NAME.search(tags[0])
        others = {part[:2] for part in tags[0].split()} - {"TP", "EP"}
        if tensor and others <= {"DP"}:
            head.tensor_rank = int(tensor[1])
            head.replica = int(tags[0].split(" DP")[1].split()[0]) if others else None
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
    elif tensor := _TENSOR_NAME.search(inside.split(" pid=")[0]):
        head.tensor_rank = int(tensor[1])
    if address:
        head.host = head.host or address[1]
    head.body = body[match.end() :]
    return True
