"""The cases of silent-desync."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_DIFFER = (
    "[replicas] replicas differ since step 4 (equal at step 2): first in 0.weight, rank 1 differs from ranks 0, 2\n"
)


def _values(*rounds: tuple[str, str], also: str = "") -> str:
    return "".join(
        f"[rank{r}] step {i} loss=1.{r} {also}w.sum={v}\n" for i, of in enumerate(rounds) for r, v in enumerate(of)
    )


_ROUNDS = (("0.381742", "0.381742"), ("0.362175", "0.386592"), ("0.343527", "0.391501"), ("0.325771", "0.395370"))


def _norms(word: str, *norms: tuple[str, str]) -> str:
    return "".join(
        f"[rank{r}] step {i} loss=1.{r} {word}={v}\n" for i, of in enumerate(norms) for r, v in enumerate(of)
    )


_NORMS = (("0.4113", "0.6404"), ("0.4303", "0.6446"), ("0.4209", "0.5979"), ("0.4319", "0.5054"))
_AFTER = "grad_norm(after all-reduce)"
_NO_SHARD = "fsdp_config: {strategy: fsdp, sharding_strategy: no_shard}\n"
_DDP = "model: DistributedDataParallel\n"


def _printed(*steps: tuple[int, int]) -> str:
    """Ranks with their steps, ten seconds apart."""
    return "".join(
        f"2023-11-03 19:{10 + i // 6}:{i % 6}0 [rank{r}] step {n}/400 avr_loss=0.11 1.00s/it\n"
        for i, (r, n) in enumerate(steps)
    )


_TOGETHER = [(0, 10), (1, 10), (0, 20), (1, 20)]
_ALONE = [(0, 30), (0, 40), (0, 50), (0, 60), (0, 70), (1, 30), (1, 40)]


def _parts(name: str, *values: str, also: str = "", grows: float = 0.0) -> str:
    """What each of two ranks prints of a part that it keeps, beside one that all train alike."""
    return also + "".join(
        f"[rank{r}] step {i} norm(body)={12.5 + i:.4f} {name}={float(v) + i * grows:.5f}\n"
        for i in range(4)
        for r, v in enumerate(values)
    )


CASES = {
    "silent-desync": (
        Fires(log_case(_NO_SHARD + _values(*_ROUNDS)), ()),
        Fires(
            log_case(
                "".join(
                    f"[rank {r}] step {i} sum|net1.weight|={v} sum|net2.weight|={i}.113907\n"
                    for i, of in enumerate(_ROUNDS)
                    for r, v in enumerate(of)
                )
            ),
            (),
        ),
        Fires(log_case(_NO_SHARD + _norms(_AFTER, *_NORMS)), ()),
        Fires(log_case(_DDP + _printed(*_TOGETHER, *_ALONE)), ()),
        Quiet(log_case(_norms("grad_norm", *_NORMS)), "a norm of what each rank has before the reduction"),
        Quiet(
            log_case("strategy: fsdp, sharding_strategy: full_shard, FSDP\n" + _norms(_AFTER, *_NORMS)),
            "after a reduce-scatter each rank has the norm of its own shard",
        ),
        Quiet(log_case(_norms(_AFTER, *((v, v) for v, _ in _NORMS))), "reduced gradients that are the same"),
        Quiet(log_case(_printed(*_TOGETHER, *_ALONE)), "steps alone of programs that are not known to be one training"),
        Quiet(
            log_case(_DDP + _printed(*_TOGETHER, (0, 30), (0, 40), (1, 30), (1, 40), (0, 50), (1, 50))),
            "lines of two ranks that do not come in turn",
        ),
        Quiet(
            log_case(_DDP + _printed(*((0, n) for n in range(10, 90, 10)), *((1, n) for n in range(10, 90, 10)))),
            "the lines of one rank, and then those of another",
        ),
        Quiet(
            log_case(_DDP + _printed(*_TOGETHER, (0, 30), (0, 40), (0, 50), (0, 60), (0, 70))),
            "one that never went on: it hangs",
        ),
        Fires(log_case(_parts("mean(codebook)", "0.01137", "-0.02088")), ()),
        Fires(log_case(_parts("teacher.norm", "4.17733", "4.20191", "4.15520")), ()),
        Quiet(log_case(_parts("mean(codebook)", "0.01137", "0.01137")), "a part that is the same on all ranks"),
        Quiet(log_case(_parts("sum(data_shard)", "0.01137", "-0.02088")), "data of each rank's own"),
        Quiet(
            log_case(_parts("mean(memory)", "0.01137", "-0.02088", grows=0.5)),
            "a part that changes in each step may hold what each rank has seen",
        ),
        Quiet(
            log_case(_parts("mean(adapter)", "0.01137", "-0.02088", also="tensor_model_parallel_size ... 2\n")),
            "stages and slices of a model",
        ),
        Fires(log_case("AssertionError: parameters are not the same across ranks"), ()),
        Fires(
            log_case(
                "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp."
            ),
            (),
        ),
        Fires(log_case("step 4, loss 0.41\n" + _DIFFER + "step 5, loss 0.4\n"), (1,)),
        Fires(
            log_case(
                "[replicas] replicas differ since step 4: first in 0.weight, no majority: rank 0; rank 1 differ\n"
            ),
            (),
        ),
        Fires(log_case(_values(*_ROUNDS)), ()),
        Fires(log_case("policy: DistributedDataParallel(device_ids=[0])\n" + _values(*_ROUNDS[1:])), ()),
        Quiet(
            log_case(_values(*_ROUNDS[1:])),
            "the ranks print different values from the start: each may hold a part of the model",
        ),
        Quiet(
            log_case(_values(*_ROUNDS, also="DiLoCo ")),
            "local SGD, sharding, or stages of a pipeline: there replicas differ by design",
        ),
        Quiet(log_case(_values(*(_ROUNDS[0],) * 4)), "a check that passed"),
        Quiet(log_case("[replicas] not compared: the model has no parameters\n"), "a comparison that was not made"),
        Quiet(log_case("step 10, loss 0.41\nparameters are the same across ranks"), "a check that passed"),
    ),
}
