"""The program that shows a wrong result: the recorded collective with tensors that lie in memory as the job's did, and the same call with copies."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.analyze.program_facts import facts_of, place_of
from unhang.analyze.situation import Situation
from unhang.model import Diagnosis, Reading

RULE = "tensor-layout"
_NUMBERS = " x "

_PROGRAM = '''\
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
    finding = diagnosis.findings[0] if diagnosis.findings else None
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
    return _PROGRAM.format(
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
