"""The cases of the rules on ranks that stand apart by the last that each told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_ALL = range(4)


def _counts(last: Mapping[int, int], order: Iterable[int], epoch: Mapping[int, int] | None = None) -> str:
    """Each rank counts its batches; the last counts come in an order."""
    first = "".join(f"[rank{r}] epoch {(epoch or {}).get(r, 2)} batch 8 of its part\n" for r in _ALL)
    return first + "".join(f"[rank{r}] epoch {(epoch or {}).get(r, 2)} batch {last[r]} of its part\n" for r in order)


_PAST = {0: 35, 1: 26, 2: 35, 3: 35}
_WAIT_OF_1 = timeouts((1, 64, "ALLREDUCE", 9000)) + "\n"
_WORLD = "world_size=4\n"

_STEPS = "".join(f"[rank0] step {n} loss 0.{9 - n}\n" for n in range(1, 5))
_END = "[rank0] Early stopping, training finished.\n"
_OTHERS = timeouts(*((r, 64, "ALLREDUCE", 9000) for r in (1, 2, 3))) + "\n"
_BARRIER = timeouts(*((r, 64, "ALLREDUCE", 1) for r in (1, 2, 3))) + "\n"

_SAVE = "[rank0] step 4: sharded save to /out/step_4\n"


def _waits(late: Iterable[int], numel: int = 1) -> str:
    return timeouts(*((r, 70, "ALLREDUCE", numel) for r in range(12) if r not in late)) + "\n"


_WORLD_12 = "world_size=12\n"
_FPE = "*** SIGFPE received at time=1752233874 on cpu 112 ***\n"
_IN_CUBLAS = "PC: @     0x7faef2f3ac59  (unknown)  cublasLt_for_cublas_ZZZ\n"

_OWNED = ((0, 301), (2, 301), (3, 301), (1, 129))

CASES = {
    "counted-past": (
        Fires(log_case(_WORLD + _counts(_PAST, (0, 2, 3, 1)) + _WAIT_OF_1), (0, 2, 3)),
        Quiet(
            log_case(_WORLD + _counts(dict.fromkeys(_ALL, 35), (0, 2, 3, 1)) + _WAIT_OF_1),
            "who waits has counted as far as the others",
        ),
        Quiet(
            log_case(_WORLD + _counts(_PAST, (1, 0, 2, 3)) + _WAIT_OF_1),
            "a count that was printed before those of the others may be old",
        ),
        Quiet(
            log_case(_WORLD + _counts(_PAST, (0, 2, 3, 1), {1: 3}) + _WAIT_OF_1),
            "another epoch, another count",
        ),
        Quiet(log_case(_WORLD + _counts(_PAST, (0, 2, 3, 1))), "nobody waited"),
        Quiet(
            log_case(_WORLD + "".join(f"[rank{r}] sampler: {n} samples\n" for r, n in _OWNED) + _WAIT_OF_1),
            "what each tells once is an amount that it has",
        ),
    ),
    "told-its-end": (
        Fires(log_case(_WORLD + _STEPS + _END + _OTHERS), (0,)),
        Fires(log_case(_WORLD + _STEPS + "[rank0] Destroying process group... Done.\n" + _BARRIER), (0,)),
        Quiet(
            log_case(_WORLD + _STEPS + _END + "[rank0] Saving model checkpoint to /out\n" + _OTHERS),
            "it went on to save",
        ),
        Quiet(
            log_case(_WORLD + _STEPS + _END + _END.replace("rank0", "rank1") + _OTHERS),
            "the one that waits said so, too",
        ),
        Quiet(
            log_case(_WORLD + _STEPS + _END + _BARRIER),
            "behind the loop others wait in a barrier: the rank may be at work",
        ),
        Quiet(log_case(_WORLD + _STEPS + _END), "nobody waited"),
        Quiet(
            log_case(_WORLD + _STEPS + "[rank0] Finished validation\n" + _OTHERS),
            "its validation is over, not the training",
        ),
        Quiet(
            log_case(
                _WORLD
                + "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.\n"
                + _OTHERS
            ),
            "torch says that its own barrier is done",
        ),
        Quiet(
            log_case(_WORLD + _STEPS + _END + "[rank0] Destroying process group...\n" + _OTHERS),
            "it has begun to destroy the process group, and may hang there",
        ),
    ),
    "late-in-common-work": (
        Fires(log_case(_WORLD_12 + _STEPS + _SAVE + _waits((5, 9))), (5, 9)),
        Quiet(
            log_case(_WORLD_12 + _STEPS + _SAVE + "[rank0] Saved checkpoint to /out/step_4\n" + _waits((5, 9))),
            "the work is told to be done",
        ),
        Quiet(log_case(_WORLD_12 + _STEPS + _SAVE + _waits((0, 5))), "the rank that told of it has not come either"),
        Quiet(log_case(_WORLD_12 + _STEPS + _SAVE + _waits((5, 9), 1 << 20)), "a bucket of gradients"),
        Quiet(
            log_case(_WORLD_12 + _STEPS + _SAVE + _waits(range(5, 12))), "half of them or more: the log may lack ranks"
        ),
        Quiet(log_case(_WORLD_12 + _SAVE + _waits((5, 9))), "it never trained"),
    ),
    "arithmetic-in-library": (
        Fires(log_case(_FPE + _IN_CUBLAS + "Fatal Python error: Floating point exception\n"), ()),
        Quiet(
            log_case(_FPE.replace("SIGFPE", "SIGSEGV") + _IN_CUBLAS + "Fatal Python error: Segmentation fault\n"),
            "another signal: memory may have been overwritten by anybody",
        ),
        Quiet(
            log_case(_FPE + _IN_CUBLAS.replace("cublasLt_for_cublas_ZZZ", "my_kernel")),
            "the frame is of the program's own extension",
        ),
        Quiet(log_case(_OTHERS + _FPE + _IN_CUBLAS), "a wait had run out before"),
    ),
}
