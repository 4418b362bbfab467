"""What ranks that do not wait are at, in many wordings: alone, with what newer versions of torch print on every rank, and each beside a healthy twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.logs.test_standing_apart import LABELS, WORLD, log, pairs, said, wait

BARRIER = [wait(r, numel=1) for r in (1, 2, 3)]


def heard(rank: int, issued: int) -> list[str]:
    """What the watchdog of a rank prints that does not wait itself: since torch 2.5 it tells its own counters, too."""
    head = f"[rank{rank}]:[E301 10:30:01.227261 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    counts = f"Last enqueued NCCL work: {issued}, last completed NCCL work: {issued}."
    return [
        f"{head} Observed flight recorder dump signal from another rank via TCPStore.",
        f"{head} Received a dump signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info. {counts}",
    ]


COUNTS = {
    "eval": "eval {n}/2086",
    "with figures": "[val] scored: {n}/1024 acc=0.01{n}",
    "requests": "dev reward (greedy) {n}/128, judge requests {n}",
    "shards": "hf_format: shard {n} of 31 is on disk",
    "unknown word": "frobnicating {n}/900",
}


@pytest.mark.parametrize(("label", "words"), pairs(list(LABELS), list(COUNTS)))
def test_who_counts_work_that_no_other_does_is_at_work(label: str, words: str) -> None:
    counts = [LABELS[label](0, COUNTS[words].format(n=n)) for n in (8, 16, 24)]
    work = ("rank0-works-alone", "slow-rank0-work", (0,))
    assert said(log([*counts, *BARRIER], label)) == work
    assert said(log([*counts, *BARRIER, *heard(0, 819)], label)) == work
    assert said(log([*counts, *BARRIER, *heard(0, 820)], label))[0] != work[0]
    assert said(log(counts, label))[0] == ""


@pytest.mark.parametrize("text", ["epoch 3 batch {n}/900", "train: {n}/900 ce=0.{n}", "iter {n}/900"])
def test_training_is_not_work_of_one_rank(text: str) -> None:
    counts = [LABELS["torchrun"](0, text.format(n=n)) for n in (8, 16, 24)]
    assert said(log([*counts, *(wait(r) for r in (1, 2, 3))]))[1] != "slow-rank0-work"


@pytest.mark.parametrize("waits", [(1, 2, 3), (1, 2)], ids=str)
def test_work_that_all_count_and_some_have_done(waits: Sequence[int]) -> None:
    late = [r for r in range(WORLD) if r not in waits]
    tell: Callable[[int, int], str] = lambda r, n: LABELS["in words"](r, f"rerank {n}/50 done")  # noqa: E731
    done = [tell(r, n) for n in (10, 50) for r in waits]
    lines = [*done, *(tell(r, n) for n in (20, 30) for r in late), *(wait(r, numel=1) for r in waits)]
    assert said(log(lines))[1:] == ("straggler", tuple(late))
    assert said(log([*lines, *(x for r in late for x in heard(r, 819))]))[1:] == ("straggler", tuple(late))


BEGUN = [
    ("[ckpt] step {n}: writing /scratch/step{n}.pt", "[ckpt] step {n}: done in 94.1 s"),
    ("frobnicating the index of round {n}", "the index of round {n} is done"),
]


@pytest.mark.parametrize(("begin", "end"), BEGUN)
def test_work_that_was_begun_and_always_ended_before(begin: str, end: str) -> None:
    def rounds(n: int, texts: Sequence[str]) -> list[str]:
        steps = [f"step {1000 * n + k} | loss 3.{k} | lr 3.00e-04" for k in range(6)]
        return [*steps, *(text.format(n=n) for text in texts)]

    waits = [wait(r) for r in (1, 2, 3)]
    open_work = [*rounds(1, (begin, end)), *rounds(2, (begin,))]
    assert said(log([*open_work, *waits]))[1:] == ("slow-rank0-work", (0,))
    assert said(log([*rounds(1, (begin, end)), *rounds(2, (begin, end)), *waits]))[1] == "unknown"


LACKS = [
    "no batch for {n} s (queue empty)",
    "waiting for data for {n} seconds",
    "waited for the next batch: {n} s",
    "without a sample since {n} s",
    "starved of data for {n} s",
]


@pytest.mark.parametrize(("label", "text"), pairs(list(LABELS), LACKS))
def test_who_says_again_and_again_that_it_has_no_data(label: str, text: str) -> None:
    tell = partial(LABELS[label])
    lines = [*(tell(2, text.format(n=n)) for n in (60, 120, 180)), *(wait(r) for r in (0, 1, 3))]
    assert said(log(lines, label)) == ("dataloader-hang", "dataloader-hang", (2,))
    assert said(log(lines[:3], label))[0] == ""
    moved = [*lines[:3], tell(2, "got it, forward of 8 rows"), *lines[3:]]
    assert said(log(moved, label))[0] != "dataloader-hang"


def files(sides: Sequence[Sequence[str]]) -> list[str]:
    """The files of all ranks, one behind the other; the middle two wait."""
    lines = []
    for rank, texts in enumerate(sides):
        lines += ["", f"==> attempt_0/{rank}/stderr.log <=="]
        lines += [LABELS["named field"](rank, text) for text in ("model is ready", *texts)]
        lines += [wait(rank)] if rank in (1, 2) else heard(rank, 819)
    return lines


def test_files_of_ranks_one_behind_the_other() -> None:
    """The order of their lines tells nothing: what a rank said before its own wait was said before the wait."""
    few, others = ("context only", "gathers a report"), ("context and more", "forward of crops")
    assert said(log(files([few, others, others, few]))) == ("another-branch", "code-divergence", (0, 3))
    assert said(log(files([others] * WORLD)))[0] != "another-branch"
