"""The cases of the rules on what ranks say in their own lines."""

from __future__ import annotations

from collections.abc import Mapping

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.cases.rank_lags import counted
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_ALL = range(4)


def _said(words: Mapping[int, str] | str, n: int = 0) -> str:
    """One line of each rank."""
    texts = dict.fromkeys(_ALL, words) if isinstance(words, str) else words
    return "".join(f"[rank{r}] {text.format(n=n)}\n" for r, text in texts.items())


_PLAN = _said("plan of 12 moves in 3 parts")
_SKIPPED = _said({2: "no moves in part 1, skipped"})
_WAIT = timeouts(*((r, 4, "COALESCED", 900) for r in _ALL)) + "\n"
_EARLY = {1: "metric reached, early stopping"}
_OF_DATA = {1: "its share of the samples is exhausted"}

# Ranks 0 and 1 never come to the call of ranks 2 and 3.
_SIDES = timeouts((2, 50, "BROADCAST", 1), (3, 50, "BROADCAST", 1)) + "\n" + counted((2, 50, 49), (3, 50, 49)) + "\n"
_LATE = counted((0, 49, 49), (1, 49, 49)).replace(
    "Timeout at NCCL work: 50", "Received a dump signal due to a collective timeout from rank 2"
)
_LOADS = {2: "loads the draft model", 3: "loads the draft model"}
_SERVES = {0: "sets the size of the cache", 1: "sets the size of the cache"}

# Rank 2 has fewer rounds; it waits in what comes after them, or has gone on where nobody's watchdog spoke.
_FEWER = _said({r: f"49 samples, {2 if r == 2 else 3} steps per epoch" for r in _ALL})
_APART = timeouts((2, 3, "ALLREDUCE", 1), *((r, 700, "_ALLGATHER_BASE", 900) for r in (0, 1, 3)))
_EPOCH = _said("starting epoch {n}", 1)
_WENT_ON = _EPOCH + _said("finished step {n}, waiting in barrier", 2) + "[rank2] starting epoch 2\n"
_LIMIT = "slurmstepd: error: *** JOB 8812 ON node-1 CANCELLED AT 2025-05-14T11:02:20 DUE TO TIME LIMIT ***\n"

_WAIT_OF_2 = timeouts((2, 64, "ALLGATHER", 1))


def _took(rank: int, seconds: float) -> str:
    """How long a copy took on each rank."""
    return "".join(f"[rank {r}] copied to host after {seconds if r == rank else 11.5 + r / 10} s\n" for r in _ALL)


_ROUNDS = "".join(_said("prompt {n}: tensor of shape (4, 3)", n) for n in range(3))
_KEPT = "".join(_said("round {n}: 6 groups kept", n) for n in range(3))

# Rank 0 alone tells of the steps, and rank 3 of what it leaves out.
_ONE_SKIPS = (
    "world size 4\n[rank0] step 11\n2026-06-09 11:10 | WARNING | app | [rank 3] NoAnchors: too short, skipping it\n"
)

_WAY = "".join(_said(text) for text in ("forward of the left half", "forward of the right half", "loss {n}"))
_PARTS = {**dict.fromkeys(_ALL, "sends what it has"), 3: "gathers what it lacks"}

_TWO_CALLS = ("all_gather of the indices", "all_reduce of the loads")


def _in_turn(*turned: int, calls: tuple[str, ...] = _TWO_CALLS, less: int = 0) -> str:
    """Two calls that each rank tells before it makes them, twice; some ranks turn them around the second time. `less`: rank 0 comes to fewer."""
    orders = {r: [*calls, *(reversed(calls) if r in turned else calls)] for r in _ALL}
    orders[0] = orders[0][: 4 - less]
    return "".join(f"[rank{r}] {text}\n" for r, texts in orders.items() for text in texts)


_SHARDS = "/v/site-packages/webdataset/workerenv.py:96: UserWarning: world_size 2 > num_shards 1\n"
_LOADED = "rank 3: model loaded in 61 s\nrank 5: model loaded in 66 s\nrank 0: model loaded in {} s\n"
_EI0006 = "[rank3]: EI0006: [PID: 9913] 2026-03-11-02:14:20.112 Getting socket times out. Reason: Remote Rank did not send the data in time.\n"

CASES = {
    "told-in-another-order": (
        Fires(log_case(_in_turn(2) + _WAIT), (2,)),
        Fires(log_case(_in_turn(1, 3) + _WAIT), ()),
        Quiet(log_case(_in_turn() + _WAIT), "one order on all ranks"),
        Quiet(
            log_case(_in_turn(1, 3, calls=("send to it", "recv of it")) + _WAIT),
            "partners send and receive in opposite orders",
        ),
        Quiet(log_case(_in_turn(less=1) + _WAIT), "a rank has not come to the second call"),
    ),
    "began-another-work": (
        Fires(
            log_case(
                _WAY + _said({**dict.fromkeys(_ALL, "recompute the left half"), 3: "recompute the right half"}) + _WAIT
            ),
            (3,),
        ),
        Fires(
            log_case(_WAY + _said({**dict.fromkeys(_ALL, "loss of the text"), 1: "loss of the images {n}"}) + _WAIT),
            (1,),
        ),
        Fires(log_case(_WAY + _said({0: "asks A", 1: "asks A", 2: "asks B", 3: "asks B"}) + _WAIT), ()),
        Quiet(log_case(_WAY + _said("recompute the left half") + _WAIT), "the last lines are the same"),
        Quiet(
            log_case(_WAY + (_said(_PARTS) + _said("half a step", 1)) * 2 + _said(_PARTS) + _WAIT),
            "one side had said so in an earlier round, too: it is its part",
        ),
        Quiet(
            log_case(_WAY + _said(_PARTS) + _WAIT.rpartition("[rank3]")[0]),
            "a rank that does not wait may be at work",
        ),
        Quiet(log_case(_WAY + _said(_PARTS)), "nobody waited"),
        Quiet(
            log_case(_WAY + _said(dict.fromkeys((0, 1, 2), "a second pass")) + _said(_PARTS) + _WAIT),
            "one rank told of less than the others before",
        ),
    ),
    "fewer-shards": (
        Fires(log_case(_SHARDS + timeouts((0, 9, "BROADCAST", 1), (1, 9, "ALLREDUCE", 1))), (1,)),
        Quiet(log_case(_SHARDS + "[rank 1] epoch 1: 0 train batches"), "nobody waited"),
        Quiet(
            log_case(_SHARDS + "".join(f"step {n} loss 2.{n}\n" for n in range(9)) + timeouts((0, 9, "BROADCAST", 1))),
            "they trained on",
        ),
    ),
    "late-to-connect": (
        Fires(log_case(_LOADED.format(244) + _EI0006), (0,)),
        Quiet(log_case(_LOADED.format(244)), "nobody gave up"),
        Quiet(log_case(_LOADED.format(95) + _EI0006), "the ranks took about as long as each other"),
    ),
    "skipped-by-some": (
        Fires(log_case(_PLAN + _SKIPPED + _WAIT), (2,)),
        Fires(log_case(_ONE_SKIPS + _WAIT.rpartition("[rank3]")[0]), (3,)),
        Quiet(log_case(_ONE_SKIPS + _WAIT), "it waits as well, and others say nothing"),
        Fires(log_case(_PLAN + _said(_EARLY) + _WAIT), (1,)),
        Fires(log_case(_PLAN + _said(_EARLY) + "Epoch 4:   0%|    | 0/313 [00:00<?, ?it/s]\n^C"), (1,)),
        Fires(log_case(_PLAN + _said(_OF_DATA) + _WAIT), (1,), cause="uneven-inputs"),
        Fires(
            log_case(_said("epoch 1 done") + _PLAN + _said({3: "epoch 2 done"}) + _WAIT.rpartition("[rank3]")[0]),
            (3,),
            cause="uneven-inputs",
        ),
        Quiet(
            log_case(_said("epoch 1 done") + _PLAN + _said({3: "epoch 2 done"}) + _WAIT),
            "it ended its pass first, and waits as well",
        ),
        Fires(
            log_case(
                _PLAN
                + _said({2: "epoch 0 done, got 36 batches", 3: "epoch 0 done, got 36 batches"})
                + "[rank0] iter 37 loss 3.7\n[rank1] iter 37 loss 3.8\n"
                + timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "ALLREDUCE", 900))
            ),
            (2, 3),
            cause="uneven-inputs",
        ),
        Quiet(log_case(_PLAN + _SKIPPED), "nobody waited, and nobody ended it"),
        Quiet(log_case(_PLAN + _said("nothing to move, skipped") + _WAIT), "all ranks say so"),
        Quiet(log_case(_PLAN + _said({0: "early stopping"}) + _WAIT), "rank 0 speaks for all"),
        Quiet(log_case(_PLAN + _SKIPPED + "step 8 loss 0.4\n" + _WAIT), "the training went on"),
        Quiet(log_case(_PLAN + _SKIPPED + _PLAN + _WAIT), "they went on with the others"),
        Quiet(log_case(_PLAN + _SKIPPED + _SKIPPED + _WAIT), "they said it before, and nothing came of it"),
        Quiet(
            log_case("[rank7] plan of 12 moves in 3 parts\n" + _PLAN + _SKIPPED + _WAIT),
            "some ranks are not in the log",
        ),
        Quiet(log_case(_PLAN + _said({2: "early_stopping will stop at 0.97"}) + _WAIT), "it is only set up"),
        Quiet(
            log_case(_PLAN + _SKIPPED + "[rank3]: ValueError: bad batch\n" + _WAIT.rpartition("[rank3]")[0]),
            "an exception came before the waits",
        ),
    ),
    "took-longer": (
        Fires(log_case(_took(3, 4106.03) + _WAIT_OF_2), (3,)),
        Fires(
            log_case(
                _took(3, 4106.03).rpartition("[rank 3]")[0] + _WAIT_OF_2 + "\n[rank 3] copied to host after 4106.03 s\n"
            ),
            (3,),
        ),
        Quiet(log_case(_took(3, 12.4) + _WAIT_OF_2), "all took about as long"),
        Quiet(log_case(_took(2, 4106.03) + _WAIT_OF_2), "who took long is one that waited"),
        Quiet(log_case(_took(3, 40.0) + _WAIT_OF_2), "it took less than the limit of the wait"),
        Quiet(
            log_case("[rank 0] copied to host after 11 s\n[rank 3] copied to host after 4106 s\n" + _WAIT_OF_2),
            "too few others tell of it",
        ),
    ),
    "another-branch": (
        Fires(log_case(_PLAN + _said(_SERVES) + _said(_LOADS) + _SIDES + _LATE), (0, 1)),
        Quiet(log_case(_PLAN + _SIDES + _LATE), "all said the same: what the missing ones do is not told"),
        Quiet(log_case(_PLAN + _said(_LOADS) + _SIDES + _LATE), "only those that wait said something else"),
        Quiet(
            log_case(
                _PLAN
                + _said(_SERVES)
                + _said(_LOADS)
                + _SIDES
                + _LATE.replace("enqueued NCCL work: 49", "enqueued NCCL work: 51")
            ),
            "they had issued the call as well",
        ),
        Quiet(
            log_case(_PLAN + _said(_SERVES) + _said(_LOADS) + _SIDES + _LATE.split("\n")[0]),
            "one rank alone: it may be at work",
        ),
    ),
    "unlike-numbers": (
        Fires(
            log_case(
                _ROUNDS
                + _said(
                    {
                        0: "prompt 3: tensor of shape (4, 2)",
                        **dict.fromkeys((1, 2, 3), "prompt 3: tensor of shape (4, 3)"),
                    }
                )
                + _WAIT
            ),
            (0,),
            cause="size-mismatch",
        ),
        Fires(
            log_case(
                _KEPT
                + _said({0: "round 3: 3 groups kept", **dict.fromkeys((1, 2, 3), "round 3: 6 groups kept")})
                + _WAIT
            ),
            (0,),
        ),
        Fires(
            log_case(
                "".join(_said(dict.fromkeys(_ALL, f"step {n}: 32 rows in 4 micro-batches")) for n in range(3))
                + _said(
                    {
                        0: "step 3: 32 rows in 5 micro-batches",
                        **dict.fromkeys((1, 2, 3), "step 3: 32 rows in 6 micro-batches"),
                    }
                )
                + _WAIT
            ),
            (0,),
            cause="uneven-inputs",
        ),
        Fires(log_case(_FEWER + _APART), (2,), cause="uneven-inputs"),
        Fires(log_case(_FEWER.replace("steps per epoch", "micro_batches") + _APART), (2,), cause="uneven-inputs"),
        Fires(log_case(_FEWER + _WENT_ON + _LIMIT), (2,), cause="uneven-inputs"),
        Quiet(log_case(_FEWER + _EPOCH + _LIMIT), "some have fewer rounds, and nobody stands apart"),
        Quiet(
            log_case(_said("took batch:{n}", 40) + "[rank2] took batch:0\n" + _LIMIT),
            "a number that counts a loop up is not how long it is",
        ),
        Quiet(log_case(_FEWER.replace("2 steps", "3 steps") + _WENT_ON + _LIMIT), "as many rounds on all"),
        Quiet(log_case(_ROUNDS + _WAIT), "they are alike to the end"),
        Quiet(
            log_case("".join(_said({r: f"round {n}: {5 + r} groups kept" for r in _ALL}) for n in range(4)) + _WAIT),
            "they differ in each round",
        ),
        Quiet(
            log_case(_KEPT + _said({0: "round 3: 3 groups kept", 1: "round 3: 6 groups kept"}) + _WAIT),
            "some ranks have not come so far",
        ),
        Quiet(
            log_case(
                "".join(_said("round {n}: loss 0.5", n) for n in range(3))
                + _said({r: f"round 3: loss 0.{r}" for r in _ALL})
                + _WAIT
            ),
            "fractions are measured",
        ),
        Quiet(
            log_case(_said("round 0: 6 groups kept") + _said({r: f"round 1: {r} groups kept" for r in _ALL}) + _WAIT),
            "one round alone was alike: a coincidence",
        ),
        Quiet(
            log_case(
                _KEPT + _said({0: "round 3: 3 groups kept", **dict.fromkeys((1, 2, 3), "round 3: 6 groups kept")})
            ),
            "nobody waited",
        ),
    ),
}
