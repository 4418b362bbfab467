"""Rule: the job runs and trains nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.training.guard_lines import quoted, said_of_learning

MIN_LINES = 5
LAST_SHARE = 0.9
_RATE = "the learning rate was 0 for all parameters in all of 5 steps; look at the optimizer's groups and the scheduler"
_LEAST_SCALE = 1e-3
_SCALED = ("learn.overflow", "learn.scale", "learn.scale_minimum")


def _overflows(scales: Sequence[float]) -> str:
    return "".join(f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {x}\n" for x in scales)


def _losses(values: Sequence[str]) -> str:
    return "".join(f"{{'loss': {v}, 'learning_rate': 2e-05, 'epoch': 0.{i}}}\n" for i, v in enumerate(values))


class NotLearning(LineRule):
    """The job runs, and its parameters do not learn: every step is skipped, or every gradient is no number.

    What it detects:
        In the steps that the log shows, up to its end: a loss scale that has fallen to nothing, steps that are all skipped for an
        overflow, a loss or gradient norm that is NaN in every line. Or a line of `unhang.check_learning`.

    Why it hangs:
        It does not, and that is the harm: the job looks healthy, or even cured of a hang, and computes for days for nothing. With
        DeepSpeed and fairseq it ends when the loss scale has come to its minimum.

    How to confirm:
        Whether the parameters change: `sum(p.abs().sum() for p in model.parameters())` before and after ten steps.

    How to fix:
        bfloat16 instead of float16 where the device has it (no loss scale); a smaller learning rate, gradient clipping, a look at the
        first batch whose loss was NaN. Start again from the last checkpoint before it: NaN in the parameters does not go away.

    Sources:
        torch.amp.GradScaler; Micikevicius et al., Mixed Precision Training, 2018.
    """

    id = "not-learning"
    cause = "not-learning"
    kinds = (*_SCALED, "learn.loss_nan", "learn.loss_zero", "learn.grad_nan", "learn.skipped_iterations")
    EXAMPLES: ClassVar = (
        Fires(log_case(_overflows([2.0**-n for n in range(20, 40)])), ()),
        Fires(log_case(_losses(["2.1", "1.9", *["nan"] * 20])), ()),
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
        Quiet(log_case(_losses(["2.1", "nan", "1.9", "1.8", "1.7", "1.6"])), "one bad batch"),
    )
    headline = "the job trains nothing"

    def check(self, s: Situation) -> Iterable[Finding]:
        """What `unhang.check_learning` saw; else what the lines of the training show."""
        said = said_of_learning(s)
        if not said:
            yield from super().check(s)
            return
        text, _, advice = said[0][0].partition("; ")
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=text,
            confidence=0.6 if s.is_hang or s.primary_failure is not None else 0.95,
            culprit_ranks=(),
            because="unhang's own check in the program watched the first steps, and said so.",
            evidence=quoted(said),
            fixes=(
                Fix(
                    advice or text,
                    setting=advice or text,
                    verify="the line is not printed any more",
                    undo="revert the edit",
                ),
            ),
        )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines that show it, of the kind that is surest."""
        return _at_minimum(s) or _scale_gone(s) or _always_skipped(s) or _never_a_number(s)

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody's: all ranks train nothing together."""
        return ()

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What the lines show."""
        kinds = {e.kind for e in events}
        if kinds & {"learn.loss_nan", "learn.grad_nan", "learn.loss_zero"}:
            return f"the loss or its gradient is no number in every one of the last {len(events)} lines: the job trains nothing"
        if "learn.skipped_iterations" in kinds:
            return f"the last {len(events)} steps shown were all skipped: the job trains nothing"
        return "the loss scale has fallen to nothing: every step is skipped, and the job trains nothing"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is no passing trouble."""
        return (
            "A loss scale that is looking for its place falls a few times and stays; here it lasts to the end of what the log shows. "
            "That a job does not hang, or no longer hangs, says nothing about whether it learns."
        )

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Less where something else failed, of which this may be an omen."""
        if any(e.kind == "learn.scale_minimum" for e in events):
            return 0.95
        return 0.6 if s.is_hang or s.primary_failure is not None else 0.85

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _FIXES


def _at_minimum(s: Situation) -> Sequence[LogEvent]:
    return s.events.of("learn.scale_minimum")


def _scale_gone(s: Situation) -> Sequence[LogEvent]:
    """The last loss scales, where they are all next to nothing."""
    scales = [(e, _real(e["scale"])) for e in s.events.of("learn.scale")]
    last = scales[-MIN_LINES:]
    gone = all(x is not None and x < _LEAST_SCALE for _, x in last)
    return tuple(e for e, _ in last) if len(last) == MIN_LINES and gone else ()


def _always_skipped(s: Situation) -> Sequence[LogEvent]:
    """Steps that report themselves as skipped, to the end."""
    stuck = [e for e in s.events.of("learn.overflow") if e["before"] and _real(e["before"]) == _real(e["after"])]
    losses = [e for e in s.events.of("learn.loss_finite") if stuck and e.order > stuck[0].order]
    if len(stuck) >= MIN_LINES and len(losses) <= len(stuck):
        return tuple(stuck)
    counted = s.events.of("learn.skipped_iterations")
    told = [e for e in counted if e["what"] == "skipped"]
    last = told[-2 * MIN_LINES :]
    return tuple(last) if len(last) == 2 * MIN_LINES and all((e.number("count") or 0) > 0 for e in last) else ()


def _never_a_number(s: Situation) -> Sequence[LogEvent]:
    """Losses or gradient norms that are no numbers, from some line to the end of the log."""
    for bad, good in ((("learn.loss_nan",), "learn.loss_finite"), (("learn.grad_nan",), "learn.grad_finite")):
        nan = s.events.of(*bad)
        after = [e for e in s.events.of(good) if nan and e.order > nan[0].order]
        if (
            len(nan) >= MIN_LINES
            and len(nan) >= LAST_SHARE * (len(nan) + len(after))
            and nan[-1].order > max((e.order for e in after), default=-1)
        ):
            return nan
    return ()


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_FIXES = (
    Fix(
        "Train without a loss scale",
        patch="torch.autocast('cuda', dtype=torch.bfloat16)   # instead of float16 with a GradScaler",
        verify="the loss is a number and falls; the parameters change from step to step",
        undo="revert the edit",
    ),
    Fix(
        "Stop at the first loss that is no number, on all ranks",
        patch="bad = (~torch.isfinite(loss)).float(); dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"
        "if bad.item() > 0: raise FloatingPointError(...)   # on every rank",
        verify="the job ends at the batch that is the cause",
        undo="remove the check",
    ),
    Fix(
        "Does not help: a smaller least loss scale, or going on",
        setting="leave the least loss scale as it is: with a scale of nothing the gradients are nothing, too",
        verify="the parameters do not change",
        undo="nothing is changed",
    ),
)
