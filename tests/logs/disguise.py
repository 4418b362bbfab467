"""An incident's lines as they lie in whole logs: behind labels, among healthy lines, cut, recoded, in several files.

Each disguise says what it preserves, and takes nothing away that the verdict rests on: the verdict must be the same as on the lines alone.
All are deterministic: the same incident gives the same files.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence

from tests.logs import chatter
from tests.logs.incident import (
    ABORT,
    ALL,
    GOES_ON,
    LOCAL,
    PART,
    Disguise,
    Files,
    Incident,
    between,
    disguise,
    labelled,
    one,
    stamp,
    started,
    text,
)
from unhang.read.logs.clock import SECOND_NS


@disguise("every line, in order; a backtrace never stands inside another or a traceback")
def backtraces(incident: Incident) -> Files:
    """C++ backtraces behind each line of an abort, as TORCH_SHOW_CPP_STACKTRACES=1 prints them for every rank."""
    found: list[str] = []
    for line, is_free in between(incident):
        found.append(line.raw)
        if is_free and ABORT.search(line.body):
            found += [line.prefix + frame for frame in chatter.BACKTRACE]
    if len(found) == len(incident.lines):
        found += chatter.BACKTRACE
    return one(found)


@disguise("every line; the label is the rank of a line whose rank is known, a line without one has no label")
def srun_tasks(incident: Incident) -> Files:
    """`srun --label` with a task for each rank."""
    return one(labelled(incident, lambda rank, _: "" if rank is None else f"{rank}: "), "slurm-4711.out")


@disguise("every line; the label says nothing: one task holds the whole node")
def srun_node(incident: Incident) -> Files:
    """`srun --label torchrun`: a task for the node, padded."""
    return one(labelled(incident, lambda *_: "0: "), "slurm-4711.out")


@disguise("every line; the label is the rank of a line whose rank is known")
def torch_ranks(incident: Incident) -> Files:
    """`[rank3]:` before the lines of a rank."""
    return one(labelled(incident, lambda rank, _: "" if rank is None else f"[rank{rank}]: "))


@disguise("every line; ranks of one node, so that the local rank is the rank; of more nodes as [rank3]")
def torchrun_tee(incident: Incident) -> Files:
    """`[default3]:` of `torchrun --tee 3`."""
    name = "default" if max(incident.ranks, default=0) < LOCAL else "rank"
    return one(labelled(incident, lambda rank, _: "" if rank is None else f"[{name}{rank}]:"))


@disguise("every line and the time of it")
def kubernetes(incident: Incident) -> Files:
    """The container runtime's own files: a time, the stream, and whether the line is whole; long ones in parts."""
    found = []
    for _, line, time_ns in _all(incident):
        head = f"{stamp(time_ns)}.{time_ns % SECOND_NS:09d}Z stderr"
        *parts, last = [line[i : i + PART] for i in range(0, len(line), PART)] or [""]
        found += [*(f"{head} P {part}" for part in parts), f"{head} F {last}"]
    return one(found, "0.log")


@disguise("every line and the time of it")
def docker(incident: Incident) -> Files:
    """Docker's json-file driver."""
    return one(
        (
            json.dumps({"log": f"{line}\n", "stream": "stderr", "time": f"{stamp(t)}.{t % SECOND_NS:09d}Z"})
            for _, line, t in _all(incident)
        ),
        "container-json.log",
    )


@disguise("every line; the process of a line, which tells no rank by itself")
def ray(incident: Incident) -> Files:
    """Ray's driver prints the lines of its actors."""
    return one(
        labelled(
            incident,
            lambda rank, _: (
                "" if rank is None else f"(RayTrainWorker pid={4000 + rank}, ip=10.0.0.{rank // LOCAL + 1}) "
            ),
        )
    )


@disguise("every line; the label is the rank of a line whose rank is known")
def mpirun(incident: Incident) -> Files:
    """`mpirun --tag-output`."""
    return one(labelled(incident, lambda rank, _: "" if rank is None else f"[1,{rank}]<stderr>:"))


@disguise("every line; the label says nothing: one machine")
def pdsh(incident: Incident) -> Files:
    """DeepSpeed's launcher over pdsh."""
    return one(labelled(incident, lambda *_: "worker-0: "))


@disguise("every line and its time to a second; the service's process is the launcher's")
def journald(incident: Incident) -> Files:
    """`journalctl -u train`."""
    return one(f"{stamp(t, '%b %d %H:%M:%S')} gpu-node-7 python3[4711]: {line}" for _, line, t in _all(incident))


@disguise("every line, in order; nothing in front says that training moved")
def healthy_front(incident: Incident) -> Files:
    """200 lines of a start."""
    return one([*chatter.start(incident.draw, 200), incident.log.rstrip("\n")])


@disguise("every line, in order, behind the start of its own launcher")
def helper_before(incident: Incident) -> Files:
    """A job script that prepares data and measures the links with jobs of their own first, which end well."""
    return one([*chatter.HELPERS, "+ torchrun --nproc-per-node=8 train.py", incident.log.rstrip("\n")])


@disguise(
    "every line, in order, behind the start of its own launcher; before lines that tell of no failure, no failed attempt"
)
def second_attempt(incident: Incident) -> Files:
    """An attempt that trained and failed in the user's code; then the whole job again."""
    earlier = chatter.FAILED_ATTEMPT if incident.tells else chatter.GOOD_ATTEMPT
    return one([*earlier, "+ torchrun --nproc-per-node=8 train.py", incident.log.rstrip("\n")])


@disguise("every line and its rank; a line of another rank says nothing")
def interleaved(incident: Incident) -> Files:
    """Lines of ranks that warn at the same time, everywhere between the others, each with its label."""
    ranks = incident.ranks or [0]
    found = []
    for i, line in enumerate(incident.lines):
        if line.rank is None:
            found.append(line.raw)
            continue
        other = ranks[(ranks.index(line.rank) + 1) % len(ranks)]
        if other != line.rank and i % 2:
            found.append(f"[rank{other}]: {chatter.WARNINGS[i % len(chatter.WARNINGS)]}")
        found.append(f"[rank{line.rank}]: {line.raw}")
    return one(found)


@disguise("every line; its first half and its second are adjacent lines with one label")
def cut_by_label(incident: Incident) -> Files:
    """`srun --label` hands on what it has when its buffer is full: a label in the middle of a long line."""
    found = []
    for rank, line, _ in _all(incident):
        label = "0: " if not incident.ranks else "" if rank is None else f"{rank}: "
        parts = [line[:1024], line[1024:]] if len(line) > 1024 else [line]
        found += [label + part for part in parts]
    return one(found, "slurm-4711.out")


@disguise("every line; one that another process ran into stands behind it, with its label")
def glued(incident: Incident) -> Files:
    """Two processes write to one pipe: a label in the middle of a line, and the newline of both behind it."""
    found = []
    for i, line in enumerate(incident.lines):
        if line.rank is None or i % 2 or line.is_trace:
            found.append(line.raw)
        else:
            bare = line.raw if line.raw.startswith("[rank") else f"[rank{line.rank}]: {line.raw}"
            found += [chatter.WARNINGS[i % len(chatter.WARNINGS)] + bare, ""]
    return one(found)


@disguise("every line, behind the last state of a bar that is done")
def bars(incident: Incident) -> Files:
    """Carriage returns: bars of loading are written over by the next line."""
    states = [
        f"Loading checkpoint shards: {i * 25:3d}%|{'█' * i:4s}| {i}/4 [00:0{i}<00:0{4 - i}, 1.02s/it]" for i in range(5)
    ]
    bar = "\r" + "\r".join(states) + "\r"
    found = []
    is_free = True
    for line, free_behind in between(incident):
        found.append(bar + line.raw if is_free and not line.is_trace else line.raw)
        is_free = free_behind
    return one(found)


@disguise("every line; colours stand around words, labels and whole lines")
def colours(incident: Incident) -> Files:
    """What rich and loguru print to a terminal, kept by `script` or a pipe that claims to be one."""
    found = []
    for i, line in enumerate(incident.lines):
        raw = re.sub(r"\b(Error|ERROR|WARN|NCCL|rank)\b", "\x1b[1;31m\\1\x1b[0m", line.raw)
        found.append(f"\x1b[{31 + i % 6}m{raw}\x1b[0m\x1b[K")
    return one(found)


@disguise("every character")
def utf16(incident: Incident) -> Files:
    """PowerShell's `>`: UTF-16 with a mark, and CRLF."""
    return {"job.log": _clean(incident.log).replace("\n", "\r\n").encode("utf-16")}


@disguise("every character")
def crlf(incident: Incident) -> Files:
    """Kept by an editor of Windows."""
    return {"job.log": _clean(incident.log).replace("\n", "\r\n").encode()}


@disguise("every character that latin-1 has")
def latin1(incident: Incident) -> Files:
    """A machine with an old locale: umlauts are single bytes."""
    lines = ["Schlüssel für Größe geändert: /home/jürgen/müll", incident.log.rstrip("\n"), ""]
    return {"job.log": "\n".join(lines).encode("latin-1", "replace")}


@disguise("every line; the older file holds the earlier ones")
def rotated(incident: Incident) -> Files:
    """logrotate: job.log.1.gz and job.log, cut where the file was full."""
    lines = [line.raw for line in incident.lines]
    half = (len(lines) + 1) // 2
    front = chatter.start(incident.draw, 20)
    older = gzip.compress(text([*front, *lines[:half]]), mtime=0)
    return {"job.log": text(lines[half:] or ["end of file"]), "job.log.1.gz": older}


@disguise("all lines up to the last one that says something")
def tail_lost(incident: Incident) -> Files:
    """The disk was full, or the window too short: nothing behind the last evidence, not even a newline."""
    lines = [line.raw for line in incident.lines[: incident.evidence[1]]]
    return {"job.log": text(lines)[:-1]}


@disguise("all lines from the first one that says something; before it half a line")
def head_lost(incident: Incident) -> Files:
    """`tail -n` or a window of a terminal: begins in the middle of a line of the start."""
    front = chatter.start(incident.draw, 2)
    return one(
        [front[0][len(front[0]) // 2 :], front[1], *(line.raw for line in incident.lines[incident.evidence[0] :])]
    )


@disguise("all lines and their order in each file; whatever says something stands in one of them")
def err_out(incident: Incident) -> Files:
    """`#SBATCH --error`: stdout and stderr in two files."""
    out = chatter.start(incident.draw, 30)
    err = []
    for line in incident.lines:
        is_out = not (line.is_event or line.is_trace) and not GOES_ON.match(line.body) and "NCCL INFO" in line.body
        (out if is_out else err).append(line.raw)
    return {"train-4711.err": text(err), "train-4711.out": text(out)}


@disguise("every line and whose it is; the order within a rank. Lines of nobody are the launcher's")
def torchrun_folder(incident: Incident) -> Files:
    """`torchrun --log-dir --redirects 3`: a file for each rank."""
    if len(incident.ranks) < 2:
        return one(labelled(incident, lambda *_: ""), "launcher.log")
    found: dict[str, list[str]] = {}
    for rank, line, _ in _all(incident):
        name = "launcher.log" if rank is None else f"none_x/attempt_0/{rank}/stderr.log"
        found.setdefault(name, []).append(line)
    return {name: text(lines) for name, lines in found.items()}


@disguise("every line; behind them what a person looked at, which says nothing of a rank")
def pasted(incident: Incident) -> Files:
    """faulthandler of a loader's worker, py-spy and gdb of the launcher, JSON of the machine."""
    return one([incident.log.rstrip("\n"), "", *chatter.PASTED])


@disguise("every line; two labels stand before each, one of the runtime, one of torchrun")
def stacked(incident: Incident) -> Files:
    """Kubernetes in front of torchrun's own labels, with colours between."""

    def label(rank: int | None, t: int) -> str:
        own = "" if rank is None else f"\x1b[36m[rank{rank}]:\x1b[0m "
        return f"{stamp(t)}.{t % SECOND_NS:09d}Z [pod/train-0/main] {own}"

    return one(labelled(incident, label))


@disguise("every line; the label is not known to anybody, and names the rank")
def unknown_label(incident: Incident) -> Files:
    """A label of a site's own wrapper."""
    return one(labelled(incident, lambda rank, _: "<<site42>> " + ("" if rank is None else f"[rank{rank}]: ")))


@disguise("every line and its time; whose it is where that is known")
def json_lines(incident: Incident) -> Files:
    """A structured logger."""
    return one(
        (
            json.dumps({"ts": f"{stamp(t)}Z", "level": "INFO", "msg": line} | ({} if rank is None else {"rank": rank}))
            for rank, line, t in _all(incident)
        ),
        "train.jsonl",
    )


@disguise("every line and its time")
def json_array(incident: Incident) -> Files:
    """What a collector exports: one array of records."""
    records = [{"timestamp": t // 1_000_000, "message": line} for _, line, t in _all(incident)]
    return {"export.json": json.dumps(records, indent=1).encode()}


@disguise("every line and its time")
def json_events(incident: Incident) -> Files:
    """`aws logs get-log-events`: the records lie in an object."""
    records = [{"timestamp": t // 1_000_000, "message": line} for _, line, t in _all(incident)]
    return {"events.json": json.dumps({"events": records, "nextForwardToken": "f/31"}).encode()}


@disguise("every line, behind its number")
def numbered(incident: Incident) -> Files:
    """`cat -n`."""
    lines = [line for _, line, _ in _all(incident)]
    return one(f"{i:6d}\t{line}" for i, line in enumerate(lines, 1))


@disguise("every line, behind the file and its number")
def grepped(incident: Incident) -> Files:
    """`grep -n -C 99 error *.log`."""
    lines = [line for _, line, _ in _all(incident)]
    return one(f"train.log-{i}-{line}" if i % 3 else f"train.log:{i}:{line}" for i, line in enumerate(lines, 1))


@disguise("every line")
def quoted(incident: Incident) -> Files:
    """A mail that answers."""
    return one(["On Monday somebody wrote:", "", *(f"> {line}" for _, line, _ in _all(incident))], "mail.txt")


@disguise("every line")
def fenced(incident: Incident) -> Files:
    """An issue's text: indented in a list, between fences."""
    lines = [line for _, line, _ in _all(incident)]
    return one(
        ["### Describe the bug", "", "1. the log:", "", "    ```", *(f"    {line}" for line in lines), "    ```"],
        "issue.md",
    )


@disguise("every line and its time; whose it is: nodes of eight ranks. Lines of nobody are the first node's")
def node_files(incident: Incident) -> Files:
    """A file for each node, with the time before each line."""
    found: dict[str, list[str]] = {}
    for rank, line, t in _all(incident):
        found.setdefault(f"node-{(rank or 0) // LOCAL}.log", []).append(
            f"{stamp(t)}.{t % SECOND_NS // 1000:06d}Z {line}"
        )
    return {name: text(lines) for name, lines in found.items()}


@disguise("every line, in order; the megabytes in front say nothing")
def huge_front(incident: Incident) -> Files:
    """A log of five megabytes, which is searched instead of read."""
    front = chatter.start(incident.draw, 400)
    return one([*(front * 200), incident.log.rstrip("\n")])


@disguise("every line, in order; the megabytes behind it say nothing either")
def huge_behind(incident: Incident) -> Files:
    """The same, and the failure is not at the end."""
    front = chatter.start(incident.draw, 400)
    return one([*(front * 100), incident.log.rstrip("\n"), "", *(front * 100)])


CHAINS = (
    ("backtraces", "srun_tasks", "colours", "crlf"),
    ("healthy_front", "glued", "kubernetes"),
    ("helper_before", "torch_ranks", "journald", "rotated"),
    ("pasted", "bars", "docker"),
    ("interleaved", "pdsh", "colours"),
    ("backtraces", "second_attempt", "mpirun", "utf16"),
    ("srun_node", "huge_front"),
    ("torchrun_tee", "unknown_label", "numbered"),
)


def _chained(names: Sequence[str]) -> Disguise:
    """Several, one over the other."""
    ways = {way.name: way for way in ALL}

    def make(incident: Incident) -> Files:
        for name in names[:-1]:
            (data,) = ways[name].make(incident).values()
            incident = Incident(incident.name, data.decode(errors="surrogateescape"))
        return ways[names[-1]].make(incident)

    every = max(ways[name].every for name in names)
    return Disguise("+".join(names), "; ".join(ways[name].keeps for name in names), make, every)


def _all(incident: Incident) -> list[tuple[int | None, str, int]]:
    return [*started(incident), *((line.rank, line.raw, line.time_ns) for line in incident.lines)]


def _clean(log: str) -> str:
    return log.encode(errors="surrogateescape").decode(errors="replace")


def sample(names: Sequence[str], most: int) -> list[tuple[str, Disguise]]:
    """(incident, disguise): so many incidents for each disguise, other ones for each, all of them in turn."""
    found = []
    for i, way in enumerate(ALL):
        few = max(1, most // way.every)
        found += [(names[(i * most + k) % len(names)], way) for k in range(few)]
    return found


ALL += [_chained(names) for names in CHAINS]
