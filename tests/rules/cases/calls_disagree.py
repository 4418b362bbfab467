"""The cases of calls-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LINE = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, "
    "OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


def timeouts(*waits: tuple[int, int, str, int]) -> str:
    """A log of timeouts, for examples: (rank, seq, op, numel)."""
    return "\n".join(_LINE.format(*wait) for wait in waits)


_OLD = (
    "[E ProcessGroupNCCL.cpp:566] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(OpType={1}, Timeout(ms)=1800000) "
    "ran for 1800391 milliseconds before timing out."
)


def _old(*ops: str) -> str:
    """A log of a version that tells no positions: the operation of each rank."""
    return "\n".join(_OLD.format(rank, op) for rank, op in enumerate(ops))


_SHAPES = timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "ALLREDUCE", 1), (2, 9, "ALLREDUCE", 900)).replace(
    "NumelIn=900, NumelOut=900", "TensorShape=[30, 30]"
)
_KEPT = "\n".join(f"kept {n} samples (cuda:{rank})" for rank, n in enumerate((20816, 20848, 20838, 20912)))

_NEAR = " 99%|█████████▉| 412/414 [51:10<00:14,  7.44s/it]\n"
_AMID = _NEAR.replace("412/414", "212/414")


def _one_small(rank: int) -> str:
    """Of four ranks one in a small all-gather, the others in the reduction of gradients."""
    return timeouts(*((r, 9, "ALLGATHER", 1) if r == rank else (r, 9, "ALLREDUCE", 41943040) for r in range(4)))


# Parameters of another module: behind the epoch, too, that is no end of a pass.
_GATHERS = "[rank 0] epoch 0 done\n" + timeouts(
    *((r, 9, "_ALLGATHER_BASE", 65536 if r == 0 else 88200) for r in range(4))
)


def _passes(*last: int, said: str = "time left: 3 h", also: str = "") -> str:
    """Ranks that tell of rounds and of each end of a pass, in the last pass so many rounds; who had fewer tells of its end, and waits elsewhere."""
    lines, ranks = [], range(len(last))
    for epoch in range(2):
        lines += [f"[rank{r}] Train Epoch: [{epoch}][{10 * i}/900] loss 1.{r}" for i in range(3) for r in ranks]
        lines += [f"[rank{r}] {said}" for r in ranks]
    for rank, count in enumerate(last):
        lines += [f"[rank{rank}] Train Epoch: [2][{10 * i}/900] loss 1.{rank}" for i in range(count)]
        lines += [f"[rank{rank}] {said}"] if count < max(last) else []
    waits = ((r, 9, *(("BROADCAST", 1) if n < max(last) else ("ALLREDUCE", 900000))) for r, n in enumerate(last))
    return "\n".join(lines) + f"\n{also}" + timeouts(*waits)


_ENDED = "[rank 2] train epoch 0 end on global_rank 2 after 5203 batches\n"
_RAISED = '\n[rank 2] Traceback (most recent call last):\n[rank 2]   File "train.py", line 9, in fit\n[rank 2]     trainer.fit(model)\n'

_PARTED = timeouts(*((r, 9, "_ALLGATHER_BASE", 65536 if r == 2 else 8820000) for r in range(4)))


def _batches(text: str, of_2: object, of_others: object, at: str = "") -> str:
    """What each rank tells of its batch, rank 2 something else than the others."""
    lines = [f"[rank{r}] {at.format(r)}{text.format(of_2 if r == 2 else of_others)}\n" for r in range(4)]
    return "".join(lines) + _PARTED


_TWO_CALLS = "\n" + timeouts((0, 9, "ALLREDUCE", 1), *((r, 9, "_ALLGATHER_BASE", 900) for r in (1, 2, 3)))


def _loaded(words: str) -> str:
    return "".join(f"[rank {r}] --> {words} = {145 if r == 0 else 146}\n" for r in range(4)) + _TWO_CALLS


CASES = {
    "calls-disagree": (
        Fires(log_case(_loaded("Num of Training Set Batches loaded")), (0,), cause="uneven-inputs"),
        Fires(log_case(_loaded("micro-batches per epoch")), (0,), cause="uneven-inputs"),
        Fires(log_case(_loaded("batches in flight")), (0,), cause="code-divergence"),
        Fires(log_case(_ENDED + _one_small(2) + _RAISED), (2,), cause="uneven-inputs"),
        Fires(log_case(_passes(3, 3, 2, 3)), (2,), cause="uneven-inputs"),
        Fires(
            log_case(
                _passes(3, 3, 2, 3).replace(
                    "[rank2] time left: 3 h\n[rank3] Train Epoch: [2]", "[rank3] Train Epoch: [2]"
                )
            ),
            (2,),
            cause="code-divergence",
        ),
        Fires(
            log_case(timeouts((0, 7, "REDUCE", 1), (1, 7, "_ALLGATHER_BASE", 64), (2, 7, "_ALLGATHER_BASE", 64))), (0,)
        ),
        Fires(
            log_case(timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "ALLREDUCE", 512), (2, 9, "ALLREDUCE", 900))),
            (1,),
        ),
        Fires(log_case(timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "BROADCAST", 1))), ()),
        Fires(log_case(_batches("tokens=512 images={}", 0, 2)), (2,), cause="code-divergence"),
        Fires(log_case(_batches("sequences: 8, utterances: {}", 0, 3)), (2,), cause="code-divergence"),
        Fires(log_case(_batches("samples={}", 0, 3)), (2,), cause="uneven-inputs"),
        Fires(log_case(_batches("tokens=512 samples={}", 2, 3)), (2,), cause="uneven-inputs"),
        Fires(log_case(_batches("batches of one size", 0, 0, "10:02:5{} ")), (2,), cause="code-divergence"),
        Fires(log_case(timeouts((0, 9, "ALLREDUCE", 4311252), (1, 9, "ALLREDUCE", 1))), (1,)),
        Fires(log_case(_NEAR + _one_small(2)), (2,), cause="uneven-inputs"),
        Fires(log_case(_NEAR + _one_small(0)), (0,), cause="code-divergence"),
        Fires(log_case(_AMID + _one_small(2)), (2,), cause="code-divergence"),
        Fires(log_case(_GATHERS), (0,), cause="code-divergence"),
        Fires(log_case(timeouts((3, 9, "ALLREDUCE", 2106881), (7, 9, "BROADCAST", 5056))), (7,), cause="uneven-inputs"),
        Fires(log_case(timeouts((0, 9, "ALLREDUCE", 4311252), (1, 9, "ALLREDUCE", 90000))), ()),
        Fires(log_case(timeouts((0, 9, "BROADCAST", 24084544), (1, 9, "BROADCAST", 64))), ()),
        Fires(log_case(_SHAPES.replace("NumelIn=1, NumelOut=1", "TensorShape=[]")), (1,)),
        Fires(log_case(_old("BROADCAST", "BROADCAST", "BROADCAST", "ALLREDUCE")), (3,)),
        Fires(log_case(_old("ALLGATHER", "ALLREDUCE")), ()),
        Fires(
            log_case(f"{_KEPT}\n{_old('BROADCAST', 'BROADCAST', 'BROADCAST', 'ALLREDUCE')}"),
            (3,),
            cause="uneven-inputs",
        ),
        Quiet(log_case(_old("BROADCAST", "BROADCAST", "ALLREDUCE", "ALLREDUCE")), "two halves may be two groups"),
        Quiet(
            log_case(
                timeouts((0, 9, "ALLREDUCE", 9))
                + "\n"
                + timeouts((1, 9, "_ALLGATHER_BASE", 5)).replace("[rank1]", "[rank5]")
            ),
            "rank 5 is rank 1 of another group",
        ),
        Quiet(log_case(timeouts((0, 9, "ALLTOALL_BASE", 9), (1, 9, "ALLTOALL_BASE", 5))), "parts may be uneven"),
        Quiet(
            log_case(timeouts((1, 9, "BROADCAST", 9), (0, 11, "_ALLGATHER_BASE", 5))),
            "a root may go on before the others",
        ),
        Quiet(
            log_case(timeouts((0, 9, "ALLREDUCE", 9), (1, 9, "ALLREDUCE", 9))),
            "they agree: the missing one is elsewhere",
        ),
    ),
}
