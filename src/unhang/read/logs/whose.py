"""What the prefixes of a log's lines tell, and which global rank each line belongs to by all of them together."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from unhang.read.logs.clock import Stamp
from unhang.read.logs.parts import are_parts_of_one, width_of_a_stage

_NCCL_RANK = re.compile(r"\brank (\d{1,7}) n[rR]anks (\d{1,7})\b")
_CHANNEL = re.compile(r"\bChannel \d+(?:/\d+)? : (\d{1,7})\[\w+\] -> (\d{1,7})\[\w+\] (\[receive\])?")
_OWN_RANK = re.compile(r"\[Rank (\d{1,7})\]")
_GLOBAL_RANKS = re.compile(r"\bglobal_ranks=\[(\d{1,7})")
_SEVERAL_NODES = re.compile(r"\bgroup_world_size=(?:[2-9]|[1-9]\d+)\b|\bgroup_rank=[1-9]|--nnodes[= ](?:[2-9]|[1-9]\d)")
_MANY_A_TASK = re.compile(
    r"\(local_rank: [1-9]|--nproc[-_]per[-_]node[= ](?!1\b)\w"
)  # a launcher in a task holds several ranks

# How a process, whose lines bear its number, tells its rank in some of them.
_SAID_RANK = re.compile(
    r"\bworld_size[=: ]{1,2}\d{1,7},? rank[=: ]{1,2}(\d{1,7})\b|\b[Rr]ank[ =:]{1,2}(\d{1,7}) ?(?:/|of|out of|in world size) ?\d"
    r"|\bGLOBAL_RANK: (\d{1,7}), MEMBER|\brank[=: ]{1,2}(\d{1,7})[\])]?,? world[_ ]size[=: ]{1,2}\d"
    r"|(?:^| )\[(?:[Rr]ank|RANK)[ :=-]?(\d{1,7})\]:? "
)
_SPY_HEAD = re.compile(r"^\s*Process (\d{1,9}): \S")
_SPY_PART = re.compile(r"^(?:\s*$|\s+\S|Python v\d|Thread )")
_ACTOR_PID = re.compile(r"^\s+pid: (\d{1,9})\s*$")
_LISTED = re.compile(r"\s*- \([^()]{0,160}\bpid=(\d{1,9})\) world_rank=(\d{1,7}), local_rank=")
# The raylet's word on one worker; a line that stands for several names one of them.
_DEAD_WORKER = re.compile(r"\bWorker PID: (\d{1,9}) (?!.*\[repeated \d)")
# Ray's word on the one that it ended for want of memory.
_OUT_OF_MEMORY = re.compile(r"^Memory on the node \(.{0,200}\) where the task \(.{0,200}?\bpid=(\d{1,9}), memory used=")
_NOTHING = re.compile(r"(?!)")
_ACTOR_PART = re.compile(r"^\s+(?:name|namespace|ip): |^The actor ")
_LEAST_PARTS = 3
MAX_COLUMN, MAX_COMPARED = 512, 200
_BEGINS, _FRAME = "Traceback (most recent call last):", '  File "'


class RankBook:
    """The ranks of one log's lines. Only what all lines together leave no doubt about counts.

    A launcher's number is a rank only where no line contradicts it: torchrun counts within a node, and a task of srun may
    hold a whole node.
    """

    def __init__(self, heads: Sequence[Head], default: int | None, ranks_by_pid: Mapping[int, int]) -> None:
        self._default = default
        self._outer_is_local = any(len(set(h.torch_ranks)) > 1 for h in heads)
        self._tasks_are_ranks = _tasks_are_ranks(heads)
        self._locals = _ranks_of_locals(heads, self._outer_is_local)
        self._pids = {**_ranks_of_channels(heads), **_ranks_of_devices(heads), **_ranks_of_pids(heads)}
        self._said = _ranks_said(heads)
        self._given_pids = {**_ranks_listed(heads), **ranks_by_pid}
        self._replicas_are_parts = are_parts_of_one(heads)
        self._width = width_of_a_stage(heads)

    def rank(self, head: Head) -> int | None:
        """The global rank, None where it is not told beyond doubt. What stands nearest to the message goes first."""
        if head.torch_ranks and (len(head.torch_ranks) > 1 or not self._outer_is_local):
            return head.torch_ranks[-1]
        if head.rank is not None:
            return head.rank
        if (local := _local(head, self._outer_is_local)) is not None:
            return self._locals.get((_node(head), local))
        if self._tasks_are_ranks and head.task is not None:
            return head.task
        if head.pid is not None:
            found = self._rank_of_process(head, head.pid)
            if found is not None:
                return found
            if (said := self._said.get((head.host, head.pid))) is not None:
                return said
        if self._default is not None:
            return self._default
        if head.stage is not None:
            return None if self._width is None else head.stage * self._width + (head.tensor_rank or 0)
        return head.tensor_rank if head.replica is None or self._replicas_are_parts else None

    def _rank_of_process(self, head: Head, pid: int) -> int | None:
        host = head.nccl_host or head.host
        keys = ((host, pid), (head.host, pid), (host, pid, head.device))
        found = (self._given_pids.get(pid), *(self._pids.get(key) for key in keys))
        return next((rank for rank in found if rank is not None), None)

    def rank_of_pid(self, pid: int) -> int | None:
        """The rank of a process, whatever its host; None where two hosts have one of this number."""
        if pid in self._given_pids:
            return self._given_pids[pid]
        known = ((key, rank) for key, rank in (*self._pids.items(), *self._said.items()) if isinstance(key, tuple))
        ranks = {rank for key, rank in known if key[1] == pid}
        return next(iter(ranks)) if len(ranks) == 1 else None

    def writer(self, head: Head) -> Hashable:
        """Which process wrote a line, as far as its prefixes tell: lines of one writer are not interleaved."""
        rank = self.rank(head)
        if rank is not None:
            return rank
        known = (head.host, head.task, _local(head, self._outer_is_local), head.pid if not head.nccl_host else None)
        return None if known == ("", None, None, None) else known


def pass_on_processes(heads: Iterable[Head], book: RankBook) -> None:
    """What is told of another process is of its rank, where other lines tell which that is: a stack that py-spy wrote, what Ray says of a worker that died."""
    rank: int | None = None
    part = _SPY_PART
    for head in heads:
        is_bare = head.pid is None and head.rank is None and not head.torch_ranks
        if is_bare and "Process " in head.body and (match := _SPY_HEAD.match(head.body)):
            rank, part = book.rank_of_pid(int(match[1])), _SPY_PART
        elif (is_bare and "Worker PID: " in head.body and (match := _DEAD_WORKER.search(head.body))) or (
            is_bare and "memory used=" in head.body and (match := _OUT_OF_MEMORY.match(head.body))
        ):
            rank, part = book.rank_of_pid(int(match[1])), _NOTHING
        elif is_bare and "pid: " in head.body and (match := _ACTOR_PID.match(head.body)):
            rank, part = book.rank_of_pid(int(match[1])), _ACTOR_PART
        elif rank is not None and not (is_bare and part.match(head.body)):
            rank = None
        if rank is not None:
            head.rank = rank


# A number in brackets near the beginning of a line, alone or behind a word for a process.
_COLUMN = re.compile(
    r"(?P<open>[\[(<|])(?:\s?(?:[Rr](?:ank)?|gpu|GPU|proc|process|pe|cuda)[ :=]?)?(?P<number>\d{1,4})\s?(?=[\])>|])"
)
_DIGITS = re.compile(r"\d+")
_MOST_BEFORE, _MOST_SAMPLED, _LEAST_WORDINGS = 40, 3000, 2


def pass_on_columns(heads: Sequence[Head]) -> None:
    """A number that all processes print at one place of their lines is their rank, where they take it in turns.

    In two wordings at least each number from 0 on comes equally often, and not always in its order, as it would in a list of one process.
    """
    if any(tells_several_nodes(head.body) for head in heads[:_MOST_SAMPLED]):
        return
    said: dict[str, dict[str, list[int]]] = {}
    for head in heads[:_MOST_SAMPLED]:
        if (found := _column(head)) is not None:
            before, number, behind = found
            said.setdefault(before, {}).setdefault(behind, []).append(number)
    highest = max((rank for head in heads for rank in head.torch_ranks), default=-1)
    columns = {before for before, wordings in said.items() if _takes_turns(wordings.values(), highest)}
    for head in heads if columns else ():
        if (found := _column(head)) is not None and found[0] in columns:
            head.rank = found[1]


def _column(head: Head) -> tuple[str, int, str] | None:
    """What stands before the number, the number, and what comes behind it, without digits; None where the line tells its rank otherwise."""
    if _is_named(head) or head.task is not None or head.nccl_host:  # NCCL tells the device there
        return None
    match = _COLUMN.search(head.body, 0, _MOST_BEFORE + 12)
    if match is None or match.start() > _MOST_BEFORE:
        return None
    before = _DIGITS.sub("#", head.body[: match.start("number")])
    return before, int(match["number"]), _DIGITS.sub("#", head.body[match.end() : MAX_COMPARED])


def _takes_turns(wordings: Iterable[Sequence[int]], highest: int) -> bool:
    every = [list(numbers) for numbers in wordings]
    count = max((max(numbers) for numbers in every), default=0) + 1
    whole = [n for n in every if sorted(n) == sorted(list(range(count)) * (len(n) // count))]
    is_mixed = any(
        numbers != sorted(numbers) and numbers != list(range(count)) * (len(numbers) // count) for numbers in whole
    )
    return 1 < count <= MAX_COLUMN and highest < count and len(whole) >= _LEAST_WORDINGS and is_mixed


def pass_on_tags(heads: Sequence[Head]) -> None:
    """Loggers that tag a line with its rank print an exception as one message: the lines behind the first one have no tag.

    Where it is the first one that has none, and the next is its first frame, it is of that rank.
    """
    tagged: dict[Hashable, Head] = {}
    for head in heads:
        where = (head.host, head.task, head.pid)
        first, is_named = tagged.get(where), _is_named(head)
        if (
            first is not None and not is_named and len(head.stamps) < len(first.stamps)
        ):  # a collector may stamp each line
            head.tensor_rank, head.replica, head.rank = first.tensor_rank, first.replica, first.rank
            head.stage = first.stage
        elif is_named or head.stamps:
            tagged.pop(where, None)
            is_part = head.tensor_rank is not None or head.stage is not None
            has_tag = is_part or (head.rank is not None and head.stamps)
            if has_tag and head.body.rstrip().endswith(_BEGINS):
                tagged[where] = head
    for head, behind in pairwise(heads):
        if not _is_named(head) and behind.body.startswith(_FRAME) and head.body.rstrip().endswith(_BEGINS):
            head.torch_ranks, head.rank, head.local_rank = [*behind.torch_ranks], behind.rank, behind.local_rank


def _is_named(head: Head) -> bool:
    return bool(head.torch_ranks) or head.rank is not None or head.local_rank is not None


def _node(head: Head) -> Hashable:
    return head.host, head.task


def _local(head: Head, outer_is_local: bool) -> int | None:
    if head.local_rank is None and outer_is_local and len(head.torch_ranks) == 1:
        return head.torch_ranks[0]
    return head.local_rank


def _tasks_are_ranks(heads: Sequence[Head]) -> bool:
    """Whether no line contradicts it. Where all lines are of task 0 it tells nobody apart: it may hold the whole job."""
    tasks = {h.task for h in heads if h.task is not None}
    if tasks in (set(), {0}) or any(
        _MANY_A_TASK.search(h.body) for h in heads if "local_rank" in h.body or "--nproc" in h.body
    ):
        return False
    tensor_of: dict[int | None, int] = {}
    if any(tensor_of.setdefault(h.task, h.tensor_rank) != h.tensor_rank for h in heads if h.tensor_rank is not None):
        return False  # a task prints for several
    return all(h.task is None or (h.local_rank is None and _own_rank(h) in (None, h.task)) for h in heads)


def _own_rank(head: Head) -> int | None:
    """The rank that a line tells of itself."""
    if head.torch_ranks:
        return head.torch_ranks[-1]
    match = _OWN_RANK.search(head.body) if "Rank " in head.body else None
    return int(match[1]) if match else head.rank


def _ranks_of_locals(heads: Sequence[Head], outer_is_local: bool) -> dict[Hashable, int]:
    """(node, local rank) -> global rank: where both stand on a line, where the agent lists them, else on one node."""
    locals_of: dict[Hashable, set[int]] = {}
    first_of: dict[Hashable, set[int]] = {}
    for head in heads:
        local = _local(head, outer_is_local)
        if local is not None:
            locals_of.setdefault(_node(head), set()).add(local)
            if head.torch_ranks and head.local_rank is not None:
                first_of.setdefault(_node(head), set()).add(head.torch_ranks[-1] - local)
        elif outer_is_local and len(head.torch_ranks) > 1:
            first_of.setdefault(_node(head), set()).add(head.torch_ranks[-1] - head.torch_ranks[0])
    if not locals_of:
        return {}
    listed, several = _reported_by_agents(heads)
    if len(listed) == len(locals_of) == 1:  # an agent's own lines may bear another prefix than its workers'
        listed = {node: next(iter(listed.values())) for node in locals_of}
    for node, first in listed.items():
        first_of.setdefault(node, set()).add(first)
    several = several or len(locals_of) > 1 or any(first != {0} for first in first_of.values())
    found: dict[Hashable, int] = {}
    for node, numbers in locals_of.items():
        firsts = first_of.get(node, set() if several else {0})
        first = next(iter(firsts), -1)
        if len(firsts) == 1 and first >= 0:
            found.update({(node, n): first + n for n in numbers})
    return found


def tells_several_nodes(line: str) -> bool:
    """Whether a line of an agent, or a command, tells that the job has more than one node."""
    return ("group_" in line or "--nnodes" in line) and _SEVERAL_NODES.search(line) is not None


def _reported_by_agents(heads: Iterable[Head]) -> tuple[dict[Hashable, int], bool]:
    """The first global rank of each node, from the agents' lists, and whether there are several nodes."""
    listed: dict[Hashable, int] = {}
    several = False
    for head in heads:
        if "global_ranks=[" in head.body and (match := _GLOBAL_RANKS.search(head.body)):
            listed[_node(head)] = int(match[1])
        else:
            several = several or tells_several_nodes(head.body)
    return listed, several


def _ranks_of_pids(heads: Iterable[Head]) -> dict[Hashable, int]:
    """Processes whose lines sometimes tell their rank. The only one that a collector names is the launcher or a service, not a rank."""
    found: dict[Hashable, set[int | None]] = {}
    of_collector: set[Hashable] = set()
    for head in heads:
        if head.pid is None:
            continue
        who = (head.nccl_host or head.host, head.pid)
        if not head.nccl_host:
            of_collector.add(who)
        if head.torch_ranks or head.rank is not None:
            found.setdefault(who, set()).add(head.torch_ranks[-1] if head.torch_ranks else head.rank)
    only = of_collector if len(of_collector) == 1 else set()
    known = {who: next(iter(ranks)) for who, ranks in found.items() if len(ranks) == 1 and who not in only}
    return {who: rank for who, rank in known.items() if rank is not None}


def _ranks_said(heads: Iterable[Head]) -> dict[Hashable, int]:
    """Processes of which a collector tells the number, and which print their rank once: that in their engine, if there are several."""
    found: dict[Hashable, set[int]] = {}
    for head in heads:
        is_named = head.pid is not None and not head.nccl_host and ("ank" in head.body or "RANK" in head.body)
        if is_named and (match := _SAID_RANK.search(head.body)):
            found.setdefault((head.host, head.pid), set()).add(int(match[match.lastindex or 1]))
    return {who: next(iter(ranks)) for who, ranks in found.items() if len(ranks) == 1}


def _ranks_listed(heads: Iterable[Head]) -> dict[int, int]:
    """Processes with the ranks that Ray Train lists when it has started them; none whose number two hosts have."""
    found: dict[int, set[int]] = {}
    for head in heads:
        if "world_rank=" in head.body and (match := _LISTED.match(head.body)):
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return {pid: next(iter(ranks)) for pid, ranks in found.items() if len(ranks) == 1}


def _ranks_of_one_node(heads: Sequence[Head]) -> dict[Hashable, int]:
    """Processes -> the numbers of their devices, where NCCL speaks on one host only, of devices from 0 on that have a process each."""
    devices: dict[tuple[str, int], set[int]] = {}
    for head in heads:
        if head.nccl_host and head.pid is not None and head.device is not None:
            devices.setdefault((head.nccl_host, head.pid), set()).add(head.device)
    numbers = sorted(n for of in devices.values() for n in of)
    is_whole = (
        len({host for host, _ in devices}) == 1
        and numbers == list(range(len(devices)))
        and len(numbers) >= _LEAST_PARTS
    )
    if not is_whole or any(h.torch_ranks or h.rank is not None for h in heads if h.nccl_host):
        return {}
    return {who: next(iter(of)) for who, of in devices.items()}


def _ranks_of_channels(heads: Iterable[Head]) -> dict[Hashable, int]:
    """Processes -> rank, by the ends of NCCL's channels that they set up, where each that speaks has one rank, and all are those from 0 on."""
    said: dict[Hashable, set[int]] = {}
    for head in heads:
        if head.nccl_host and head.pid is not None:
            of, match = said.setdefault((head.nccl_host, head.pid), set()), _CHANNEL.search(head.body)
            of |= {int(match[2] if match[3] else match[1])} if match else set()
    ranks = {who: next(iter(of)) for who, of in said.items() if len(of) == 1}
    return ranks if len(ranks) == len(said) > 1 and sorted(ranks.values()) == list(range(len(ranks))) else {}


def _ranks_of_devices(heads: Sequence[Head]) -> dict[Hashable, int]:
    """Processes (or their devices) -> rank in NCCL's largest communicator.

    Nothing where that communicator may be a part of the job: two processes claim one rank in it, or a rank beyond it speaks.
    """
    claims: dict[int, dict[int, set[tuple[str, int, int | None]]]] = {}
    for head in heads:
        if head.nccl_host and head.pid is not None and "anks " in head.body and (m := _NCCL_RANK.search(head.body)):
            who = (head.nccl_host, head.pid, head.device)
            claims.setdefault(int(m[2]), {}).setdefault(int(m[1]), set()).add(who)
    if not claims:
        return _ranks_of_one_node(heads)
    size = max(claims)
    beyond = any(r >= size for h in heads for r in h.torch_ranks)
    if beyond or size < 2 or any(len(who) != 1 for who in claims[size].values()):
        return {}
    found: dict[Hashable, int] = {}
    processes: dict[tuple[str, int], list[int]] = {}
    for rank, claimed in claims[size].items():
        host, pid, device = next(iter(claimed))
        if (host, pid, device) in found:  # two ranks on one device
            return {}
        processes.setdefault((host, pid), []).append(rank)
        found[host, pid, device] = rank
    found.update({who: ranks[0] for who, ranks in processes.items() if len(ranks) == 1})
    return found


@dataclass(slots=True)
class Head:
    """What the prefixes of one line tell. `body`: the line without them; `stamps`: its times, the outermost first.

    `torch_ranks`: ranks in torch's own form, the outermost first; the innermost is global. `rank`: a global rank told in
    another form. `task`: number of the launcher's task (mpirun, srun), a rank where a task is one. `local_rank` counts
    within a node; `tensor_rank` within a tensor-parallel group, `replica` numbers these groups, or parts of one, `stage` those of a pipeline.
    `taken`: the elected forms that were taken off, as bits.
    """

    body: str
    torch_ranks: list[int] = field(default_factory=list)
    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    tensor_rank: int | None = None
    replica: int | None = None
    stage: int | None = None
    host: str = ""
    pid: int | None = None
    device: int | None = None
    nccl_host: str = ""
    stamps: list[Stamp] = field(default_factory=list)
    taken: int = 0
