"""Jobs at the edges: hostile text in every place, and thousands of ranks."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.show.cases import BACKWARD, BARRIER, DATA, MAIN, START_NS, Sample, evidence, hang, steady
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
    ProcessGroup,
    RuleOutcome,
    TableBuilder,
    Unavailable,
    Verdict,
    WaitEdge,
    WaitsFor,
)

HOSTILE = "</script><script>alert(1)</script><!-- [bold red]x[/] \x1b[31mred\x1b[0m \u202egnp.exe\u202c {{script}} \x00"


def hostile() -> Sample:
    """The hang with foreign text in every place that a job can write to."""
    sample = hang()
    frames = (Frame(f"/tmp/{HOSTILE}.py", 3, f"f{HOSTILE}"), *BARRIER[2:])
    finding = replace(
        sample.diagnosis.findings[0], title=f"rank 0 {HOSTILE}", because=HOSTILE, location=Location.of(frames[0]),
        evidence=(EvidenceLine(HOSTILE, HOSTILE, 1),),
        fixes=(Fix(HOSTILE, HOSTILE, patch=f"-{HOSTILE}\n+\u05d0\u05d1\u05d2", command=HOSTILE, undo=HOSTILE),),
    )  # fmt: skip
    job = replace(sample.case.job, command=("python", HOSTILE))
    case = replace(sample.case, job=job, ranks={**sample.case.ranks, 0: evidence(0, frames, phase=HOSTILE)})
    waits = replace(sample.waits, edges=tuple(replace(e, what=HOSTILE) for e in sample.waits.edges))
    inventory = Inventory((HOSTILE,), (Unavailable(HOSTILE, HOSTILE),))
    outcomes = (RuleOutcome(HOSTILE, Verdict.ERROR, HOSTILE),)
    diagnosis = replace(
        sample.diagnosis, job=job, findings=(finding,), inventory=inventory, outcomes=outcomes, notes=(HOSTILE,)
    )
    return Sample(diagnosis, case, waits)


def large(world: int = 4096, calls: int = 200, culprit: int = 2711) -> Sample:
    """A big job in which one rank never comes."""
    table = TableBuilder()
    everyone = ProcessGroup("0", "default_pg", tuple(range(world)), 600.0, "nccl")
    seq, now = steady(table, table.group(everyone), everyone.ranks, calls // 4, seed=3)
    others = tuple(r for r in range(world) if r != culprit)
    for rank in others:
        table.add(
            rank=rank, group=0, seq=seq, op="all_reduce", in_sizes=((2_359_296,),), dtype="Float", frames=BACKWARD,
            created_ns=now + 91_000_000 + rank * 300, record_id=seq, state=CallState.STARTED,
        )  # fmt: skip
    stuck = (Frame("/usr/lib/python3.11/threading.py", 320, "wait"), Frame(DATA, 61, "__next__"), *MAIN)
    observed = HangObservation("suspected", (now - START_NS) / 1e9 + 0.09, 15.0, others, "no progress")
    finding = Finding(
        id="F1", rule="dataloader", cause="dataloader-hang", confidence=0.9, culprit_ranks=(culprit,),
        title=f"rank {culprit} never reached all_reduce #{seq} of default_pg: it waits for its data loader at data.py:61",
        victim_ranks=others, because=f"Its main thread waits for a queue; {world - 1} ranks wait for it.",
        process_group={"pg_name": "0", "pg_desc": "default_pg"}, collective={"op": "all_reduce", "seq": seq},
        location=Location(DATA, 61, "__next__"),
    )  # fmt: skip
    case = Case(
        job=Job(world, world // 8, ("srun", "python", "train.py"), "nccl", "2.13.0", None, False, START_NS),
        ranks={r: evidence(r, stuck if r == culprit else BACKWARD, world, steps=calls // 4) for r in range(world)},
        groups=(everyone,),
        calls=table.build(),
        hang=observed,
    )
    edges = tuple(WaitEdge(r, (culprit,), "collective", f"all_reduce #{seq} of default_pg", "0", seq) for r in others)
    diagnosis = Diagnosis(
        Outcome.HANG, case.job, observed, (finding,), (RuleOutcome("dataloader", Verdict.FAIL),), Inventory()
    )
    return Sample(diagnosis, case, WaitsFor(edges, roots=(culprit,)))
