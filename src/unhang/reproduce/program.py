"""Writes the stand-alone program that replays a schedule: it needs torch alone, and no device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unhang.analyze.by_kind import facts_of, place_of
from unhang.analyze.situation import Situation
from unhang.model import Diagnosis, Reading
from unhang.reproduce.schedule import P2P, ROOTED, Schedule, Step

QUIET_S = 2.0
START_S = 30.0
_WIDTH = 150
Rows = Mapping[int, Sequence[tuple[str, str]]]

# Operation -> the parameters and the body of the function that starts it; `t` makes a tensor, `G` holds the groups.
_CALLS = {
    "all_reduce": "g, n, d, *_: dist.all_reduce(t(n, d), group=G[g], async_op=True)",
    "barrier": "g, *_: dist.barrier(group=G[g], async_op=True)",
    "broadcast": "g, n, d, p: dist.broadcast(t(n, d), p, group=G[g], async_op=True)",
    "reduce": "g, n, d, p: dist.reduce(t(n, d), p, group=G[g], async_op=True)",
    "all_gather": "g, n, d, *_: dist.all_gather(each(g, n, d), t(n, d), group=G[g], async_op=True)",
    "all_gather_into_tensor": "g, n, d, *_: dist.all_gather_into_tensor(t(n * size(g), d), t(n, d), group=G[g], async_op=True)",
    "reduce_scatter_tensor": "g, n, d, *_: dist.reduce_scatter_tensor(t(n, d), t(n * size(g), d), group=G[g], async_op=True)",
    "gather": "g, n, d, p: dist.gather(t(n, d), each(g, n, d) if dist.get_rank() == p else None, p, group=G[g], async_op=True)",
    "scatter": "g, n, d, p: dist.scatter(t(n, d), each(g, n, d) if dist.get_rank() == p else None, p, group=G[g], async_op=True)",
    "all_to_all": "g, n, d, *_: dist.all_to_all_single(t(n * size(g), d), t(n * size(g), d), group=G[g], async_op=True)",
    "send": "g, n, d, p, tag: dist.isend(t(n, d), p, tag=tag)",
    "recv": "g, n, d, p, tag: dist.irecv(t(n, d), p, tag=tag)",
    "new_group": "ranks: dist.new_group(ranks) and None",
    "store_wait": "key: dist.distributed_c10d._get_default_store().wait([key])",
    "sleep": ": time.sleep(1e6)",
    "event": ": threading.Event().wait()",
    "queue": ": queue.Queue().get()",
    "stop": ": os.kill(os.getpid(), signal.SIGSTOP)",
    "kill": "number: (time.sleep(0.5), os.kill(os.getpid(), number))",
    "exit": "code: (time.sleep(0.5), os._exit(code))",
    "raise": "text: (time.sleep(0.5), fail(text))",
}
_MODULES = {"event": "threading", "queue": "queue"}
# What those functions need, by the text that calls it.
_HELPERS = {
    "t(": "t = lambda n, d: torch.ones(n, dtype=getattr(torch, d))",
    "size(": "size = lambda g: dist.get_world_size(G[g])",
    "each(": "each = lambda g, n, d: [t(n, d) for _ in range(dist.get_world_size(G[g]))]",
    "fail(": 'def fail(text): raise RuntimeError(f"as recorded: {text}")',
}

_PROGRAM = '''\
"""{title}
Written by `unhang reproduce`; needs torch alone and no GPU. The report says:
{note}
Exit code: 1 fails as the job did, 2 fails in another way, 0 all calls completed.{usage}
"""
import mmap, {modules}
import torch, torch.distributed as dist
os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
# rank of the job: [(what, operation, {fields}), ...] in the order of issue
SCHEDULE = {schedule}
EXPECTED = {expected}  # where the job's ranks stood
{fix}WHO, G, DONE = sorted(SCHEDULE), {{"default_pg": None}}, 255
{helpers}START = {{{calls}}}

def run_rank(index, steps, at, folder):
    signal.alarm(120)  # whatever happens, no process stays
{absent}    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=index, world_size=len(WHO))
{groups}    at[index] = 1
    while not min(at[:]): time.sleep(0.01)  # until all have joined
{loop}    at[index] = DONE
    time.sleep(120)  # the others still need the connection

def run(steps):
    at, pids, seen, moved = mmap.mmap(-1, len(WHO)), [], b"", time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for index, rank in enumerate(WHO):
            pids.append(os.fork())
            if pids[-1]: continue
            try: run_rank(index, steps[rank], at, folder)
            except BaseException as error:  # what gloo says of its peers belongs to the failure
                print(f"rank {{rank}}: {{type(error).__name__}}: {{str(error)[:200]}}", file=sys.stderr, flush=True)
                at[index] = at[index] if "gloo/" in str(error) or "as recorded" in str(error) else 254
            os._exit(1)
        while min(at[:]) < DONE and time.monotonic() - moved < ({quiet_s} if min(at[:]) else {start_s}):
            time.sleep(0.02)
            seen, moved = at[:], moved if at[:] == seen else time.monotonic()
        for pid in pids: os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)
    names = {{r: ["init_process_group", *(s[0] for s in steps[r])] for r in WHO}}
    return {{r: "failed in another way" if n == 254 else names[r][n] for r, n in zip(WHO, at[:]) if n < DONE}}

found = run({steps})
is_same = all(EXPECTED.get(rank) == what for rank, what in found.items()){core}
code = 2 - is_same if found else 0
verdict = ("passes: all calls completed", "fails the same way", "fails in another way")[code]
print(*(f"rank {{rank}}: {{what}}" for rank, what in found.items()), verdict, sep="\\n")
sys.exit(code)
'''
_LOOP = """\
    for at[index], (what, operation, *arguments) in enumerate(steps, 1):
        work = START[operation](*arguments)
        work and work.wait()
"""
_LOOP_ASYNC = """\
    works = [START[operation](*arguments) for at[index], (what, operation, *arguments) in enumerate(steps, 1)]
    for at[index], work in enumerate(works, 1): work and work.wait()
"""
_GROUPS = """\
    G.update({{name: dist.new_group(ranks) for name, ranks in {groups}.items()}})
"""


def render(schedule: Schedule, title: str, note: str = "", with_fix: bool = False, quiet_s: float = QUIET_S) -> str:
    """The program's text."""
    fix = schedule.fix() if with_fix else None
    steps = [s for of_rank in (*schedule.steps.values(), *(fix or {}).values()) for s in of_rank]
    ops = dict.fromkeys(op for s in steps if (op := _operation(s)) in _CALLS)
    bodies = "".join(_CALLS[op] for op in ops)
    modules = {"os", "signal", "sys", "tempfile", "time", *(_MODULES[op] for op in ops if op in _MODULES)}
    never = [r for r, of_rank in schedule.steps.items() if any(s.op == "never_joins" for s in of_rank)]
    absent = [schedule.ranks.index(r) for r in never]
    keep_out = f"    if index in {absent} and steps:\n        at[index] = 1\n        time.sleep(120)\n"
    groups = {name: [schedule.ranks.index(m) for m in members] for name, members in schedule.groups.items()}
    core = set(schedule.core)
    is_async = any(schedule.is_left_open(r, s) for r, of_rank in schedule.steps.items() for s in of_rank) or any(
        s.op in P2P and len(of_rank) > 1 for of_rank in (fix or {}).values() for s in of_rank
    )
    return _PROGRAM.format(
        title=_plain(title),
        note="\n".join(map(_plain, note.splitlines())),
        usage=" Argument `fixed`: with FIX." if fix else "",
        modules=", ".join(sorted(modules)),
        fields="group, elements, type, root or peer, tag"
        if any(s.op in P2P for s in steps)
        else "group, elements, type, root",
        schedule=_table(_rows(schedule, schedule.steps)),
        expected=schedule.expected,
        fix=f"FIX = {_fix_table(_rows(schedule, schedule.steps), _rows(schedule, fix))}\n" if fix else "",
        helpers="".join(f"{text}\n" for use, text in _HELPERS.items() if use in bodies),
        calls=",\n         ".join(f'"{op}": lambda {_CALLS[op]}'.replace("lambda :", "lambda:") for op in ops),
        absent=keep_out if absent else "",
        groups=_GROUPS.format(groups=groups) if groups else "",
        loop=_LOOP_ASYNC if is_async else _LOOP,
        quiet_s=quiet_s,
        start_s=f"{2 * quiet_s} if steps is SCHEDULE else {START_S}" if absent else START_S,
        steps='SCHEDULE | FIX if "fixed" in sys.argv else SCHEDULE' if fix else "SCHEDULE",
        core=f" and bool({core} & set(found))" if core else "",
    )


def _plain(text: str) -> str:
    """Text of a job, made harmless: it goes into a program's comments."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.replace("\\", "/").replace('"""', "'''")


def _operation(step: Step) -> str:
    return {"isend": "send", "irecv": "recv"}.get(step.op, step.op)


def _rows(schedule: Schedule, steps: Mapping[int, Sequence[Step]]) -> Rows:
    """The steps of each rank as literals, with their places in the job's code."""
    return {r: [(_row(schedule, s), _plain(s.place)) for s in steps[r] if s.op != "init"] for r in sorted(steps)}


def _table(rows: Rows) -> str:
    """A literal of the steps by rank, a line for each."""
    lines = ["{"]
    for rank, of_rank in rows.items():
        start = f"    {rank}: ["
        for i, (row, place) in enumerate(of_rank or [("", "")], 1):
            end = "]," if i >= len(of_rank) else ","
            lines.append(f"{start}{row}{end}" + (f"  # {place}" if place else ""))
            start = " " * len(start)
    return "\n".join([*lines, "}"])


def _fix_table(rows: Rows, fixed: Rows) -> str:
    """A literal of the steps that are to be changed: those of another rank where they are the same."""
    ranks: dict[str, list[int]] = {}
    for rank, of_rank in fixed.items():
        steps = [row for row, _ in of_rank]
        same = next((r for r in rows if r not in fixed and [row for row, _ in rows[r]] == steps), None)
        one_line = f"[{', '.join(steps)}]"
        wrapped = one_line if len(one_line) < _WIDTH else "[\n        " + ",\n        ".join(steps) + "]"
        ranks.setdefault(wrapped if same is None else f"SCHEDULE[{same}]", []).append(rank)
    if len(ranks) == 1 and len(fixed) > 1:
        (text,) = ranks
        return f"dict.fromkeys({sorted(fixed)}, {text})"
    pairs = sorted((rank, text) for text, of_text in ranks.items() for rank in of_text)
    return "{" + ",\n       ".join(f"{rank}: {text}" for rank, text in pairs) + "}"


def _row(schedule: Schedule, step: Step) -> str:
    values: Iterable[object] = (step.text, _operation(step), *_arguments(schedule, step))
    return f"({', '.join(_quoted(v) for v in values)})"


def _quoted(value: object) -> str:
    is_plain = isinstance(value, str) and value.isprintable() and '"' not in value and "\\" not in value
    return f'"{value}"' if is_plain else repr(value)


def _arguments(schedule: Schedule, step: Step) -> tuple[object, ...]:
    """What the function of the operation takes. Roots and peers are ranks of the program."""
    if step.op in ("kill", "exit"):
        return (step.number,)
    if step.op == "raise" or step.op == "store_wait":
        return (step.group,)
    if step.op == "new_group":
        return ([schedule.ranks.index(m) for m in step.members],)
    if step.is_local:
        return ()
    if step.op in P2P:
        assert step.peer is not None
        return (step.group, step.size, step.dtype, schedule.ranks.index(step.peer), int(step.key[3]))
    root = (step.peer if step.peer is not None else schedule.members(step.group)[0]) if step.op in ROOTED else None
    return (step.group, step.size, step.dtype, None if root is None else schedule.ranks.index(root))


# The program that shows a wrong result: the recorded collective with tensors that lie in memory as the job's did, and the same call with copies.

RULE = "tensor-layout"
_NUMBERS = " x "

_WRONG_RESULT = '''\
"""{title}
Written by `unhang reproduce`; needs torch alone and no GPU.
Exit code: 1 the result is wrong, as in the job, 0 it is right. Argument `fixed`: with the tensors in one piece.
"""
import os, signal, sys, tempfile
import torch, torch.distributed as dist
os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
OP = "{op}"
TENSORS = {tensors}  # rank: (sizes, strides) in the job{where}

def tensor(rank, is_fixed):
    sizes, strides = TENSORS[rank]
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) + torch.Size(sizes).numel()  # room for what is written behind it
    t = torch.zeros(span).as_strided(sizes, strides)
    t.copy_((torch.arange(float(t.numel())).reshape(sizes) + 1) * (rank + 1)) if 0 not in strides else t.fill_(rank + 1.0)
    return t.contiguous() if is_fixed else t

def result(rank, is_fixed):
    t = tensor(rank, is_fixed)
    if OP == "all_reduce": dist.all_reduce(t)
    elif OP == "broadcast": dist.broadcast(t, 1)
    elif OP == "reduce": dist.reduce(t, 0)
    elif OP == "scatter": dist.scatter(t, [torch.arange(float(t.numel())).reshape(t.shape) + i for i in TENSORS] if rank == 0 else None, 0)
    else:
        parts = [torch.zeros(t.shape) for _ in TENSORS] if is_fixed else [torch.zeros(t.shape)] * len(TENSORS)
        if OP == "all_gather": dist.all_gather(parts, t)
        elif OP == "gather": dist.gather(t, parts if rank == 0 else None, 0)
        else: dist.all_to_all(parts, [t.contiguous() for _ in TENSORS])
        return torch.stack(parts)
    return t.clone()

def run_rank(rank, folder):
    signal.alarm(60)  # whatever happens, no process stays
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=len(TENSORS))
    right, found = result(rank, True), result(rank, "fixed" in sys.argv)
    print(f"rank {{rank}}: {{found.flatten().tolist()[:8]}}, in one piece {{right.flatten().tolist()[:8]}}", flush=True)
    os._exit(0 if torch.equal(right, found) else 1)

with tempfile.TemporaryDirectory() as folder:
    pids = []
    for rank in TENSORS:
        pids.append(os.fork())
        if not pids[-1]: run_rank(rank, folder)
    is_wrong = any(os.waitpid(pid, 0)[1] for pid in pids)
print("fails the same way: the result is wrong" if is_wrong else "passes: the result is right")
sys.exit(is_wrong)
'''


def wrong_result(s: Situation, diagnosis: Diagnosis) -> str | None:
    """The program's text; None where the first finding is another one, or the tensors are not known."""
    finding = diagnosis.first
    if finding is None or finding.rule != RULE or finding.location is None:
        return None
    at = (finding.location.file, finding.location.line)
    facts = [f for f in facts_of(s.case, "program.tensor") if place_of(f) == at]
    seq = (finding.collective or {}).get("seq")
    by_rank = {f.rank: f for f in facts if f["seq"] == seq and f.rank is not None}
    if not by_rank:
        return None
    first = next(iter(by_rank.values()))
    layouts = [_layout(by_rank[rank]) for rank in sorted(by_rank)][:2]
    if len(layouts) == 1:
        layouts.append(_in_one_piece(layouts[0][0]))
    return _WRONG_RESULT.format(
        title=" ".join(finding.title.split()).replace("\\", "/").replace('"', "'"),
        op=(finding.collective or {}).get("op", ""),
        tensors=dict(enumerate(layouts)),
        where=f", at {first.at}" if first.at else "",
    )


def _layout(fact: Reading) -> tuple[Sequence[int], Sequence[int]]:
    sizes, strides = ([int(n) for n in fact.text(name).split(_NUMBERS)] for name in ("sizes", "strides"))
    return sizes, strides


def _in_one_piece(sizes: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return sizes, strides
