"""The cases of not-learning."""

from __future__ import annotations

from collections.abc import Sequence

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_RATE = "the learning rate was 0 for all parameters in all of 5 steps; look at the optimizer's groups and the scheduler"


def _overflows(scales: Sequence[float]) -> str:
    return "".join(f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {x}\n" for x in scales)


def _losses(values: Sequence[str]) -> str:
    return "".join(f"{{'loss': {v}, 'learning_rate': 2e-05, 'epoch': 0.{i}}}\n" for i, v in enumerate(values))


def _skipped(count: int) -> dict[int, dict[str, int]]:
    return {rank: {"skipped_steps": count} for rank in range(4)}


def _evaluated(*losses: str) -> str:
    steps = "epoch {0} step 200/400 train_loss 3.42{0}\nepoch {0} step 400/400 train_loss 3.41{0}\nepoch {0} eval: loss {1} rouge1 11.0427\n"
    return "".join(steps.format(n, loss) for n, loss in enumerate(losses))


CASES = {
    "not-learning": (
        Fires(log_case(_overflows([2.0**-n for n in range(20, 40)])), ()),
        Fires(log_case(_losses(["2.1", "1.9", *["nan"] * 20])), ()),
        Fires(log_case("".join(f"step {n} loss: 11.931 grad_norm: 0.0000\n" for n in range(12))), ()),
        Fires(log_case("".join(f"step:{n} - pg_loss:0.00{71 + n % 3} - grad_norm:0.0\n" for n in range(12))), ()),
        Quiet(
            log_case("".join(f"step:{n} - pg_loss:0.00{71 + n % 3} - grad_norm:0.00\n" for n in range(12))),
            "norms that are rounded to zero beside a loss that moves",
        ),
        Fires(log_case(_evaluated(*["3.388214"] * 5)), ()),
        Fires(log_case("".join(f"Epoch {n}: 0it [00:00, ?it/s]\n" for n in range(5))), ()),
        Quiet(
            log_case("".join(f"step {n} loss: {9 - n / 9} grad_norm: 0.0000\n" for n in range(12))),
            "no gradient norm is printed, and the loss falls",
        ),
        Fires(
            log_case("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
            (),
        ),
        Fires(log_case("".join(f"[learning] rank {r}: {_RATE}\n" for r in (1, 0)) + "step 6 loss 2.1\n"), ()),
        Quiet(
            log_case("[learning] rank 0: the check ends: ValueError: x\nstep 6 loss 2.1\n"),
            "a check that failed itself",
        ),
        Quiet(
            log_case(_overflows([65536.0, 32768.0, 16384.0]) + _losses(["2.1", "1.9", "1.8"])),
            "a loss scale that finds its place",
        ),
        Fires(log_case("".join(f"epoch {i} scale_g=0.0 | scale_d=0.0\n" for i in range(6))), ()),
        Fires(make_case({}, hang=None, exit_code=0, steps=dict.fromkeys(range(4), 0), more=_skipped(80)), ()),
        Quiet(
            make_case({}, hang=None, exit_code=0, steps=dict.fromkeys(range(4), 0), more=_skipped(12)),
            "a loss scale that finds its place in a short job",
        ),
        Quiet(
            make_case({}, hang=None, exit_code=0, steps=dict.fromkeys(range(4), 0)),
            "a job that only evaluates, or has an optimizer of its own",
        ),
        Quiet(
            log_case("".join(f"epoch {i} grad_scale=0.0001\n" for i in range(9))),
            "a scale that was chosen, and never fell",
        ),
        Quiet(
            log_case("".join(f"epoch {i} loss scales [1e-05, 65536.0]\n" for i in range(6))),
            "one of two optimizers learns",
        ),
        Quiet(log_case("".join(f"epoch {i} val_loss: nan\n" for i in range(9))), "an evaluation without data"),
        Quiet(log_case(_losses(["2.1", "nan", "1.9", "1.8", "1.7", "1.6"])), "one bad batch"),
        Quiet(log_case(_evaluated("3.388214", "3.388214", "3.388190")), "evaluations that change"),
        Quiet(
            log_case("".join(f"Epoch {n}: 0it [00:00, ?it/s]\nEpoch {n}: 40it [00:09, 4.4it/s]\n" for n in range(5))),
            "a bar that begins at zero",
        ),
    ),
}
