"""Who does not wait with the others, from the size of the world in any words, and who prints on."""

from __future__ import annotations

import pytest

from tests.rules.cases.calls_disagree import timeouts
from unhang.analyze.lines.going_on import silent_ranks, works_on
from unhang.analyze.situation import Situation
from unhang.testing import log_case

WAITS = timeouts(*((rank, 12, "ALLREDUCE", 9000) for rank in (1, 2, 3)))


@pytest.mark.parametrize(
    ("hint", "silent"),
    [
        ("torchrun --nproc-per-node=4 train.py", (0,)),
        ("torchrun --nnodes=2 --nproc-per-node=2 train.py", (0,)),
        ("Initializing distributed with NCCL, world size 4", (0,)),
        ("[run] world=4 fsdp2", (0,)),
        ("export WORLD_SIZE=4", (0,)),
        ("SLURM_NTASKS=4", (0,)),
        ("node-a:1:2 [0] NCCL INFO comm 0x5562 rank 3 nranks 4 cudaDev 3 busId 4c000 - Init COMPLETE", (0,)),
        ("All distributed processes registered. Starting with 4 processes", (0,)),
        ("world size 4\nworld size 8", ()),  # they do not agree
        ("world size 3", ()),  # a rank beyond it speaks
        ("export WORLD_SIZE=2", ()),  # a scheduler's, which counts nodes
        ("world size 64", ()),  # may be the log of one node
        ("", ()),
        ("[rank0]: step 11 loss 2.0", (0,)),  # it is there, whatever the size
        ("[rank5]: step 11 loss 2.0", ()),
    ],
)
def test_the_silent_rank_of_a_world_of_known_size(hint: str, silent: tuple[int, ...]) -> None:
    assert silent_ranks(Situation(log_case(f"{hint}\n{WAITS}"))) == silent


def test_one_rank_alone_tells_nothing_of_another_that_printed_nothing() -> None:
    alone = timeouts((0, 12, "ALLREDUCE", 9000))
    assert silent_ranks(Situation(log_case(f"world size 2\n{alone}"))) == ()
    assert silent_ranks(Situation(log_case(f"[rank 1] world size 2\n{alone}"))) == (1,)


def test_nobody_is_silent_where_they_wait_in_different_calls() -> None:
    waits = timeouts((1, 12, "ALLREDUCE", 9000), (2, 13, "BROADCAST", 1), (3, 12, "ALLREDUCE", 9000))
    assert silent_ranks(Situation(log_case(f"world size 4\n{waits}"))) == ()


@pytest.mark.parametrize(
    ("before", "after", "is_at_work"),
    [
        ("eval 200/2086", "eval 250/2086", True),
        ("eval 200/2086", "eval 200/2086", False),
        ("eval 200/2086", "eval 250/3000", False),  # another count
        ("eval 200/2086", "[rank2]: eval 250/2086", False),  # of one that waits
        ("loaded at 10:20/11", "loaded at 10:21/11", False),  # a time of day
    ],
)
def test_a_count_that_goes_on_is_of_one_that_does_not_wait(before: str, after: str, is_at_work: bool) -> None:
    found = works_on(Situation(log_case(f"{before}\n{WAITS}\n{after}\n")))
    assert (found is not None) is is_at_work
