"""Made-up jobs that look like real ones: what the drawing parts are tried on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from unhang.model import (
    CallState,
    Case,
    Diagnosis,
    EvidenceLine,
    Finding,
    Fix,
    Frame,
    HangObservation,
    Inventory,
    Job,
    Location,
    Outcome,
    ProcessExit,
    ProcessGroup,
    ProcessState,
    RaisedError,
    RankEvidence,
    RankIdentity,
    RuleOutcome,
    Source,
    TableBuilder,
    ThreadStack,
    Unavailable,
    Verdict,
    WaitEdge,
    WaitsFor,
)

START_NS = 1_790_000_000_000_000_000
TRAIN = "/home/ada/lm/train.py"
DATA = "/home/ada/lm/data.py"
PIPE = "/home/ada/lm/pipeline.py"
TORCH = "/home/ada/venv/lib/python3.11/site-packages/torch/"
COMMAND = ("torchrun", "--nproc-per-node", "4", "train.py", "--config", "configs/base.yaml")

MAIN = (Frame(TRAIN, 88, "train_epoch"), Frame(TRAIN, 140, "main"), Frame(TRAIN, 163, "<module>"))
BACKWARD = (
    Frame(TORCH + "autograd/graph.py", 824, "_engine_run_backward"),
    Frame(TORCH + "autograd/__init__.py", 354, "backward"),
    Frame(TORCH + "_tensor.py", 648, "backward"),
    *MAIN,
)
BARRIER = (
    Frame(TORCH + "distributed/distributed_c10d.py", 4818, "barrier"),
    Frame(TORCH + "distributed/c10d_logger.py", 83, "wrapper"),
    Frame(TRAIN, 41, "save_checkpoint"),
    Frame(TRAIN, 92, "train_epoch"),
    *MAIN[1:],
)


@dataclass(frozen=True)
class Sample:
    """One job with all that the drawing parts take."""

    diagnosis: Diagnosis
    case: Case
    waits: WaitsFor


def evidence(rank: int, frames: tuple[Frame, ...] = (), world: int = 4, **more: object) -> RankEvidence:
    """A rank with one stack."""
    stacks = (ThreadStack("MainThread", frames, is_main=True, source=Source("py-spy")),) if frames else ()
    identity = RankIdentity(rank, world, rank, 4100 + rank, "node-a", torch_version="2.13.0", backend="nccl")
    more.setdefault("state", ProcessState("S", cpu_share=0.02))
    return RankEvidence(identity, stacks, **more)  # type: ignore[arg-type]


def steady(
    table: TableBuilder,
    group: int,
    ranks: tuple[int, ...],
    steps: int,
    *,
    step_ns: int = 180_000_000,
    timed: bool = True,
    seed: int = 1,
) -> tuple[int, int]:
    """Healthy training: four gradient buckets per step. Returns the next sequence number and its time."""
    noise = random.Random(seed)
    seq, now = 1, START_NS + 6_000_000_000
    for _ in range(steps):
        for bucket, size in enumerate((2_359_296, 7_087_872, 7_087_872, 1_182_464)):
            at = now + 90_000_000 + bucket * 20_000_000
            for rank in ranks:
                created = at + noise.randrange(4_000_000)
                table.add(
                    rank=rank, group=group, seq=seq, op="all_reduce", in_sizes=((size,),), out_sizes=((size,),),
                    dtype="Float", created_ns=created, record_id=seq, frames=BACKWARD,
                    completed_ns=at + 16_000_000 + noise.randrange(500_000) if timed else 0, timeout_ms=600_000,
                )  # fmt: skip
            seq += 1
        now += step_ns
    return seq, now


FIX = Fix(
    title="Let every rank reach the barrier",
    patch=(
        "--- a/train.py\n+++ b/train.py\n@@ -38,5 +38,5 @@ def save_checkpoint(model, step):\n"
        "     if dist.get_rank() == 0:\n         torch.save(model.state_dict(), path(step))\n"
        "-        dist.barrier()\n+    dist.barrier()\n"
    ),
    undo="git apply -R fix.patch",
    verify="unhang run -- torchrun --nproc-per-node 4 train.py --config configs/base.yaml --max-steps 60",
)
LONGER = Fix(
    title="Do not raise the timeout: the wait can never end",
    setting="leave timeout at 600 s (init_process_group)",
    verify="with 1800 s the job dies at the same call, 20 minutes later",
)


def hang() -> Sample:
    """Rank 0 is in a barrier below `if rank == 0`, its peers are in the gradient all_reduce of the next step."""
    table = TableBuilder()
    world = ProcessGroup("0", "default_pg", (0, 1, 2, 3), 600.0, "nccl")
    group = table.group(world)
    seq, now = steady(table, group, world.ranks, 40)
    for rank in (1, 2, 3):
        table.add(
            rank=rank, group=group, seq=seq, op="all_reduce", in_sizes=((2_359_296,),), dtype="Float", frames=BACKWARD,
            created_ns=now + 91_000_000 + rank * 700_000, record_id=seq, state=CallState.STARTED, timeout_ms=600_000,
        )  # fmt: skip
    table.add(
        rank=0, group=group, seq=seq, op="barrier", in_sizes=((1,),), dtype="Float", frames=BARRIER,
        created_ns=now + 4_000_000, record_id=seq, state=CallState.STARTED, timeout_ms=600_000,
    )  # fmt: skip
    onset_s = (now + 4_000_000 - START_NS) / 1e9
    observed = HangObservation("proven", onset_s, 2.31, (0, 1, 2, 3), "ranks are in different calls at #161")
    waits = WaitsFor(
        edges=tuple(
            WaitEdge(r, tuple(t for t in range(4) if t != r) if r == 0 else (0,), "collective",
                     f"{'barrier' if r == 0 else 'all_reduce'} #{seq} of default_pg", "0", seq, now, mismatch=True)
            for r in range(4)
        ),
        cycles=((0, 1, 2, 3),),
    )  # fmt: skip
    main = Finding(
        id="F1",
        rule="mismatched-collective",
        cause="code-divergence",
        title=f"rank 0 called barrier as #{seq} of default_pg where ranks 1-3 called all_reduce: save_checkpoint() at "
        "train.py:41 (rank 0 only)",
        confidence=0.97,
        culprit_ranks=(0,),
        victim_ranks=(1, 2, 3),
        because=f"Collective #{seq} of default_pg is barrier on rank 0 and all_reduce on ranks 1-3. Rank 0 reached its "
        "call through `if dist.get_rank() == 0` at train.py:39; the other ranks never enter that branch, so neither "
        "call can ever complete.",
        process_group={"pg_name": "0", "pg_desc": "default_pg"},
        collective={"op": "all_reduce", "seq": seq, "sizes": [[2_359_296]]},
        location=Location(TRAIN, 41, "save_checkpoint"),
        evidence=(
            EvidenceLine("rank 0 flight recorder", f"#{seq} barrier, started, not completed", None),
            EvidenceLine("ranks 1-3 flight recorder", f"#{seq} all_reduce([2359296]), started, not completed", None),
            EvidenceLine("rank 0 stack", "save_checkpoint at train.py:41, called from train_epoch:92", 41),
            EvidenceLine("ranks 1-3 stack", "loss.backward() at train.py:88 in train_epoch", 88),
        ),
        fixes=(FIX, LONGER),
    )
    echo = Finding(
        id="F2", rule="watchdog-timeout", cause="unknown", title="ranks 1-3 would hit the 600 s timeout of default_pg",
        confidence=0.9, culprit_ranks=(1, 2, 3), because=f"They wait in all_reduce #{seq}.", consequence_of="F1",
    )  # fmt: skip
    case = Case(
        job=Job(4, 1, COMMAND, "nccl", "2.13.0", 124, True, START_NS),
        ranks={
            r: evidence(r, BARRIER if r == 0 else BACKWARD, steps=40, phase="backward" if r else "checkpoint")
            for r in range(4)
        },
        groups=(world,),
        calls=table.build(),
        hang=observed,
    )
    outcomes = (
        RuleOutcome("mismatched-collective", Verdict.FAIL, "1 finding"),
        RuleOutcome("user-exception", Verdict.PASS, "no rank raised"),
        RuleOutcome("xid", Verdict.SKIPPED, "needs the kernel log, which is not readable"),
    )
    inventory = Inventory(
        ("flight recorder of ranks 0-3", "stacks of ranks 0-3", "process state of ranks 0-3", "output of the job"),
        (Unavailable("kernel log", "dmesg: Operation not permitted"), Unavailable("C++ stacks", "not asked for")),
    )
    return Sample(Diagnosis(Outcome.HANG, case.job, observed, (main, echo), outcomes, inventory), case, waits)


def cycle() -> Sample:
    """Two threads order two groups differently: ranks 0-1 wait in tensor-parallel, ranks 2-3 in data-parallel."""
    table = TableBuilder()
    world, tp, dp = (
        ProcessGroup("0", "default_pg", (0, 1, 2, 3), 600.0, "gloo"),
        ProcessGroup("1", "tp", (0, 1, 2, 3), 600.0, "gloo"),
        ProcessGroup("2", "dp", (0, 1, 2, 3), 600.0, "gloo"),
    )
    group, tp_index, dp_index = table.group(world), table.group(tp), table.group(dp)
    seq, now = steady(table, group, world.ranks, 12, timed=False)
    first = (Frame(TORCH + "distributed/distributed_c10d.py", 2810, "all_reduce"), Frame(PIPE, 57, "sync_weights"))
    other = (Frame(TORCH + "distributed/distributed_c10d.py", 3420, "all_gather"), Frame(PIPE, 112, "sync_metrics"))
    edges = []
    for rank in range(4):
        index, op, frames = (tp_index, "all_reduce", first) if rank < 2 else (dp_index, "all_gather", other)
        name, targets = ("tp", (2, 3)) if rank < 2 else ("dp", (0, 1))
        table.add(
            rank=rank, group=index, seq=7, op=op, in_sizes=((1024, 64),), dtype="BFloat16", frames=frames,
            created_ns=now + rank * 1_500_000, record_id=seq, state=CallState.SCHEDULED,
        )  # fmt: skip
        edges.append(WaitEdge(rank, targets, "collective", f"{op} #7 of {name}", name, 7, now))
    observed = HangObservation("proven", (now - START_NS) / 1e9, 1.05, (0, 1, 2, 3), "the waits form a cycle")
    finding = Finding(
        id="F1",
        rule="order-across-groups",
        cause="collective-order-race",
        title="ranks 0-1 are in all_reduce #7 of tp, ranks 2-3 in all_gather #7 of dp: each waits for the other",
        confidence=0.99,
        culprit_ranks=(0, 1),
        victim_ranks=(2, 3),
        because="Both groups have the same members, and two threads issue on them without a common order. "
        "Ranks 0-1 issued tp first, ranks 2-3 issued dp first.",
        process_group={"pg_name": "1", "pg_desc": "tp"},
        collective={"op": "all_gather", "seq": 7},
        location=Location(PIPE, 57, "sync_weights"),
        evidence=(
            EvidenceLine("ranks 0-1 stack", "sync_weights at pipeline.py:57", 57),
            EvidenceLine("ranks 2-3 stack", "sync_metrics at pipeline.py:112", 112),
        ),
        fixes=(
            Fix("Issue both groups from one thread", "unhang dryrun pipeline.py shows one order on all ranks",
                setting="[pipeline] async_metrics = false", undo="[pipeline] async_metrics = true"),
        ),
    )  # fmt: skip
    case = Case(
        job=Job(4, 1, ("torchrun", "--nproc-per-node", "4", "pipeline.py"), "gloo", "2.13.0", None, False, START_NS),
        ranks={r: evidence(r, first if r < 2 else other, steps=12) for r in range(4)},
        groups=(world, tp, dp),
        calls=table.build(),
        hang=observed,
    )
    waits = WaitsFor(tuple(edges), cycles=((0, 1, 2, 3),))
    outcomes = (RuleOutcome("order-across-groups", Verdict.FAIL, "1 finding"),)
    inventory = Inventory(("flight recorder of ranks 0-3", "stacks of ranks 0-3"))
    return Sample(Diagnosis(Outcome.HANG, case.job, observed, (finding,), outcomes, inventory), case, waits)


def crash() -> Sample:
    """Rank 2 raises in its data set, the launcher ends the others."""
    table = TableBuilder()
    world = ProcessGroup("0", "default_pg", (0, 1, 2, 3), 600.0, "nccl")
    group = table.group(world)
    seq, now = steady(table, group, world.ranks, 9)
    for rank in (0, 1, 3):
        table.add(
            rank=rank, group=group, seq=seq, op="all_reduce", in_sizes=((2_359_296,),), dtype="Float", frames=BACKWARD,
            created_ns=now + 91_000_000, record_id=seq, state=CallState.STARTED,
        )  # fmt: skip
    frames = (
        Frame(DATA, 23, "__getitem__"),
        Frame(TORCH + "utils/data/_utils/fetch.py", 52, "fetch"),
        Frame(TRAIN, 81, "train_epoch"),
        *MAIN[1:],
    )
    error = RaisedError("IndexError", "index 50257 is out of bounds for axis 0 with size 50257", now, frames)
    ends = {r: ProcessExit("signal", -15, now + 3_000_000_000) for r in (0, 1, 3)}
    ranks = {r: evidence(r, BACKWARD, steps=9, exit=ends[r]) for r in (0, 1, 3)}
    ranks[2] = evidence(2, steps=9, error=error, exit=ProcessExit("exit", 1, now + 400_000_000))
    finding = Finding(
        id="F1",
        rule="user-exception",
        cause="user-exception",
        title="rank 2 raised IndexError in __getitem__() at data.py:23: index 50257 is out of bounds for axis 0 "
        "with size 50257",
        confidence=0.99,
        culprit_ranks=(2,),
        victim_ranks=(0, 1, 3),
        because="It is the first error of the job, 3.0 s before the launcher sent SIGTERM to ranks 0,1,3, "
        "which were waiting in all_reduce #37.",
        location=Location(DATA, 23, "__getitem__"),
        evidence=(EvidenceLine("rank 2 error", "IndexError: index 50257 is out of bounds for axis 0", 23),),
        fixes=(
            Fix("Reproduce it on one process", "the same IndexError appears without a launcher",
                command="python -c 'from data import Tokens; Tokens(\"shard-3\")[50256]'"),
        ),
    )  # fmt: skip
    case = Case(
        job=Job(4, 1, COMMAND, "nccl", "2.13.0", 1, False, START_NS),
        ranks=dict(sorted(ranks.items())),
        groups=(world,),
        calls=table.build(),
    )
    waits = WaitsFor(
        tuple(WaitEdge(r, (2,), "collective", f"all_reduce #{seq} of default_pg", "0", seq, now) for r in (0, 1, 3)),
        roots=(2,),
    )
    outcomes = (RuleOutcome("user-exception", Verdict.FAIL, "1 finding"),)
    inventory = Inventory(("errors of rank 2", "flight recorder of ranks 0-3"))
    return Sample(Diagnosis(Outcome.CRASH, case.job, None, (finding,), outcomes, inventory), case, waits)


def clean() -> Sample:
    """A job that came to its end."""
    table = TableBuilder()
    world = ProcessGroup("0", "default_pg", (0, 1, 2, 3), 600.0, "nccl")
    _, now = steady(table, table.group(world), world.ranks, 20)
    end = ProcessExit("exit", 0, now + 200_000_000)
    case = Case(
        job=Job(4, 1, COMMAND, "nccl", "2.13.0", 0, False, START_NS),
        ranks={r: evidence(r, steps=20, exit=end) for r in range(4)},
        groups=(world,),
        calls=table.build(),
    )
    outcomes = (RuleOutcome("mismatched-collective", Verdict.PASS, "all 80 collectives match"),)
    inventory = Inventory(("flight recorder of ranks 0-3",))
    return Sample(Diagnosis(Outcome.CLEAN, case.job, None, (), outcomes, inventory), case, WaitsFor())


def unknown() -> Sample:
    """Everyone waits in the same call, and nothing says why it does not complete."""
    table = TableBuilder()
    world = ProcessGroup("0", "default_pg", (0, 1, 2, 3), 600.0, "nccl")
    group = table.group(world)
    seq, now = steady(table, group, world.ranks, 5)
    for rank in range(4):
        table.add(
            rank=rank, group=group, seq=seq, op="all_reduce", in_sizes=((2_359_296,),), dtype="Float",
            created_ns=now + 91_000_000, record_id=seq, state=CallState.SCHEDULED,
        )  # fmt: skip
    case = Case(
        job=Job(4, 1, (), "nccl", "", None, False, 0),
        ranks={r: evidence(r) for r in range(4)},
        groups=(world,),
        calls=table.build(),
    )
    outcomes = (
        RuleOutcome("mismatched-collective", Verdict.PASS, "all 21 collectives match"),
        RuleOutcome("xid", Verdict.SKIPPED, "needs the kernel log"),
        RuleOutcome("ib-link", Verdict.SKIPPED, "needs the kernel log"),
        RuleOutcome("rank-stuck", Verdict.SKIPPED, "needs a stack of each rank"),
        RuleOutcome("slow-node", Verdict.ERROR, "ZeroDivisionError: division by zero"),
    )
    inventory = Inventory(
        ("flight recorder of ranks 0-3",),
        (Unavailable("stacks", "the bundle holds none"), Unavailable("kernel log", "the bundle holds none")),
    )
    notes = ("2 of 6 files were not of a known kind",)
    diagnosis = Diagnosis(Outcome.UNKNOWN, case.job, None, (), outcomes, inventory, notes)
    return Sample(diagnosis, case, WaitsFor())


SAMPLES = {"hang": hang, "cycle": cycle, "crash": crash, "clean": clean, "unknown": unknown}
