"""Does the model learn at all? "No hang" is not "it trains": a job may run for days without one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from unhang.inside.guards.probes import FEW_STEPS, Found, Reductions, Window, trainable, wrapped_modules
from unhang.inside.guards.words import in_words, log, some_of
from unhang.inside.rank import who

TAG = "learning"
LOWEST_SCALE = 1e-3
# A loop that accumulates gradients makes many backward passes before its first step; so many more are too many.
_BACKWARDS_PER_STEP = 10
_SAMPLES = 3
_MOST_NAMED = 3
_SCALE_SEARCH = 32
# One step taken in so many is as good as none.
_MOST_SKIPPED = 10
_LONGEST_PAUSE = 1000


class LearningFinding(NamedTuple):
    """One thing that keeps the model from learning; `what` is its name, the same for each."""

    what: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"


def check_learning(model: Any, optimizer: Any, scaler: Any = None, within: int = 20) -> LearningCheck:
    """Watches the first `within` steps, and some later ones, and says what keeps the model from learning.

    It looks for: steps that a GradScaler skips, a loss scale that has collapsed, an optimizer that never steps, a learning
    rate of zero, gradients that are all zero or not finite, parameters that do not change although they have gradients,
    trainable parameters in no optimizer, and DDP modules that reduce no gradients or that the training goes around.
    Everything is reported once, as a line `[learning] ...` of the rank that sees it, and kept in `findings`. It never raises.

    Looking costs some microseconds per step; in three steps of each window the norms of the gradients, and at its ends a
    checksum of the parameters, and the only wait for the device. The first window is followed by others at growing distance;
    in most of their steps there is nothing to look at.

    Example:
        ```python
        import torch
        import unhang

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # somebody forgot to set it
        learning = unhang.check_learning(model, optimizer, within=5)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert [finding.what for finding in learning.findings] == ["zero learning rate"]
        learning.close()
        ```

    Args:
        model: a module, DDP or not. Call once per model: a GAN's discriminator has a check of its own.
        optimizer: that of the model, or a list of them.
        scaler: the GradScaler, if there is one.
        within: steps after which to judge.

    Blocks: never, but for the device at the end of a window.
    """
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    check = LearningCheck(model, optimizers, scaler, max(1, within))
    check._safely(check._begin)
    return check


class LearningCheck:
    """The check under way; made by `check_learning`.

    steps: optimizer steps that were taken. attempts: those that were tried, with a scaler. backwards, cleared: backward
    passes before the first step, and those of them that began without gradients of an earlier one.
    """

    def __init__(self, model: Any, optimizers: Sequence[Any], scaler: Any, within: int) -> None:
        self.findings: list[LearningFinding] = []
        self.steps = self.attempts = self.backwards = self.cleared = 0
        self._model, self._optimizers, self._scaler, self._within = model, optimizers, scaler, within
        self._reductions: list[Reductions] = []
        self._hooks: list[Any] = []
        self._backward_hook: Any = None
        self._unwrap: Callable[[], None] | None = None
        self._window = Window()
        self._next_judged = within
        self._in_other_optimizers: set[int] = set()
        self._looks_at = 0
        self._is_closed = self._is_quiet = False

    def judge_now(self) -> list[LearningFinding]:
        """Judges by what was seen so far; returns all findings. Blocks: until the device has come so far."""
        self._safely(self._judge)
        return self.findings

    def close(self) -> None:
        """Ends the check, and takes back all hooks."""
        self._is_closed = True
        hooks, self._hooks = [*self._hooks, self._backward_hook], []
        reductions, self._reductions = self._reductions, []
        for end in [*(hook.remove for hook in hooks if hook is not None), *(r.close for r in reductions)]:
            with suppress(Exception):
                end()
        unwrap, self._unwrap = self._unwrap, None
        if unwrap is not None:
            with suppress(Exception):
                unwrap()

    def _safely(self, work: Callable[..., None], *arguments: Any) -> None:
        """Nothing of ours may raise into the training: a check that fails says so and ends.

        Its hooks stay until `close`, of no effect: torch goes through them at this moment, and would raise if one vanished.
        """
        if self._is_closed:
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            log(TAG, f"the check ends: {in_words(error)}")
            self._is_closed = True

    def _begin(self) -> None:
        import torch.optim.optimizer as optimizers
        from torch.autograd.graph import register_multi_grad_hook

        self._reductions = [Reductions(name, ddp, self._safely) for name, ddp in wrapped_modules(self._model)]
        self._hooks = [optimizer.register_step_pre_hook(self._step_begins) for optimizer in self._optimizers]
        self._hooks.append(optimizers.register_optimizer_step_post_hook(self._step_ended))
        parameters = [parameter for _, parameter in trainable(self._model)]
        some = list(
            {id(p): p for p in (parameters[:1] + parameters[len(parameters) // 2 :][:1] + parameters[-1:])}.values()
        )
        if some:
            after = lambda _: self._safely(self._backward, some)  # noqa: E731
            self._backward_hook = register_multi_grad_hook(some, after, mode="any")
        if hasattr(self._scaler, "step"):
            self._unwrap = _each_call(self._scaler, "step", lambda o: self._safely(self._attempted, o))

    # The hooks: between two windows there is nothing to see, and they return at once.

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        if not self._is_quiet:
            self._safely(self._before_step, optimizer)

    def _step_ended(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self._optimizers[-1]:
            done = max(self.attempts, self.steps) + 1
            if self._is_quiet and done < self._looks_at and "found_inf" not in optimizer.__dict__:
                self.steps += 1
            else:
                self._safely(self._after_step, optimizer)
        elif not any(optimizer is own for own in self._optimizers):
            self._safely(self._other_step, optimizer)

    def _other_step(self, optimizer: Any) -> None:
        """Another optimizer of the script may hold parameters of this model."""
        self._in_other_optimizers.update(id(p) for group in optimizer.param_groups for p in group["params"])

    def _look(self) -> None:
        """Looks in the first steps of a window and in the last before it is judged; and for a learning rate, until there is one."""
        window, near = self._window, max(self._within, FEW_STEPS + 1)
        done = max(self.attempts, self.steps)
        self._looks_at = self._next_judged - near
        is_between = self.steps - window.first_step > near and done < self._looks_at
        for reductions in self._reductions:
            reductions.look(not is_between)
        self._is_quiet = is_between and window.has_rate

    def _attempted(self, optimizer: Any) -> None:
        """The scaler's `step` is over: it has called the optimizer's, or not."""
        if optimizer is self._optimizers[-1]:
            self.attempts += 1
            if self.attempts >= self._next_judged:
                self._judge()

    def _backward(self, some: Sequence[Any]) -> None:
        self.backwards += 1
        self.cleared += all(parameter.grad is None for parameter in some)
        if (
            not self.attempts
            and max(self.cleared * _BACKWARDS_PER_STEP, self.backwards) >= self._within * _BACKWARDS_PER_STEP
        ):
            text = f"{self.backwards} backward passes, and no step of the optimizer"
            advice = "is step() called on the optimizer that was given here, or does a GradScaler skip it (give it as scaler=)?"
            self._find("no optimizer step", text, advice)

    def _before_step(self, optimizer: Any) -> None:
        window, place = self._window, self.steps - self._window.first_step
        if optimizer is self._optimizers[0]:
            for reductions in self._reductions:
                reductions.before_step()
            if place == 0 and not window.is_open:
                window.open(self._model)
            if not window.has_rate:
                window.see_rates(self._optimizers)
        if place in {self._within * k // _SAMPLES for k in range(_SAMPLES)}:
            window.sample(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        self.steps += 1
        if self._backward_hook is not None:
            self._backward_hook.remove()
            self._backward_hook = None
        # A fused optimizer is called in any case, and leaves the parameters alone where the scaler found an infinity.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            self._window.skipped = self._window.skipped + (found_inf > 0)
        # With a scaler the end of its `step` is the time to judge, unless the script goes around it.
        if self.steps >= self._next_judged and (self._unwrap is None or self.steps > self.attempts + 1):
            self._judge()
        self._look()

    def _judge(self) -> None:
        window = self._window
        skipped, steps = int(window.skipped), self.steps - window.first_step
        tried = max(self.attempts - window.first_attempt, steps)
        found = [*self._scaling(tried, steps - skipped), *_rates(window, steps), *self._membership(window, steps)]
        if steps > skipped:
            found += [*_gradients(window.norms()), *self._changes(window, steps)]
        for reductions in self._reductions:
            found += reductions.judge(steps)
        for finding in found:
            self._find(*finding)
        self._window = Window(self.steps, self.attempts)
        done = max(self.attempts, self.steps)
        self._next_judged = done + min(max(self._within, done), _LONGEST_PAUSE)
        self._is_quiet = False

    def _scaling(self, tried: int, taken: int) -> Iterator[Found]:
        if self._scaler is None or not self._scaler.is_enabled() or not tried:
            return
        scale = float(self._scaler.get_scale())
        if scale < LOWEST_SCALE:
            advice = "the gradients are not finite; look for the first NaN or Inf, and start again from before it"
            yield "loss scale collapsed", f"the loss scale has fallen to {scale:.3g}", advice
        # At first a scaler looks for the scale, and skips steps by design.
        is_looking = scale >= 1 and self.attempts < _SCALE_SEARCH
        if taken * _MOST_SKIPPED <= tried and not is_looking:
            advice = "it finds Inf or NaN in the gradients; the model does not learn"
            yield "steps skipped", f"the GradScaler skipped {tried - taken} of the last {tried} optimizer steps", advice

    def _changes(self, window: Window, steps: int) -> Iterator[Found]:
        still = sorted(window.should_move() & set(window.unchanged(self._model)))
        if still:
            text = f"{some_of(still, _MOST_NAMED)} did not change in {steps} steps, with gradients and a learning rate above 0"
            advice = "the update may be too small for the format, or the optimizer updates another copy"
            yield "parameters do not change", text, advice

    def _membership(self, window: Window, steps: int) -> Iterator[Found]:
        held = {id(p) for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}
        held |= self._in_other_optimizers
        left = [name for name, parameter in trainable(self._model) if id(parameter) not in held]
        # Some optimizers update the parameters through copies of their own.
        if left and steps:
            still = set(window.unchanged(self._model))
            left = [name for name in left if name in still]
        if left:
            advice = "give it the parameters after the model was moved, wrapped or loaded, or set requires_grad_(False)"
            yield "in no optimizer", f"in no optimizer, though to be trained: {some_of(left, _MOST_NAMED)}", advice

    def _find(self, what: str, text: str, advice: str) -> None:
        if all(known.what != what for known in self.findings):
            finding = LearningFinding(what, text, advice)
            self.findings.append(finding)
            log(TAG, f"{who()}{finding}")


def _rates(window: Window, steps: int) -> Iterator[Found]:
    if steps and window.rates == {0.0}:
        text = f"the learning rate was 0 for all parameters in all of {steps} steps"
        yield "zero learning rate", text, "look at the optimizer's groups and the scheduler"


def _gradients(norms: Sequence[dict[str, float]]) -> Iterator[Found]:
    """What is wrong with gradients, by the norms that were taken before some steps."""
    known = [norm for sample in norms for norm in sample.values()]
    if norms and not known:
        advice = "backward() must reach the parameters; look for detach(), no_grad(), and zero_grad() before step()"
        yield "no gradients", "no parameter had a gradient when the optimizer stepped", advice
    elif known and not any(known):
        advice = "is the loss connected to the parameters, and not masked or multiplied with 0?"
        yield "gradients are zero", "all gradients were 0", advice
    elif known and all(any(not math.isfinite(norm) for norm in sample.values()) for sample in norms):
        bad = sorted({name for sample in norms for name, norm in sample.items() if not math.isfinite(norm)})
        text = f"NaN or Inf in the gradients of {some_of(bad, _MOST_NAMED)}, in each step that was looked at"
        yield "gradients are not finite", text, "look for the first one with torch.autograd.detect_anomaly()"


def _each_call(target: Any, name: str, after: Callable[[Any], None]) -> Callable[[], None]:
    """Has `after` called with the first argument of each call of a method; returns what takes it back."""
    original = getattr(target, name)

    def called(first: Any, *arguments: Any, **more: Any) -> Any:
        result = original(first, *arguments, **more)
        after(first)
        return result

    def undo() -> None:
        if target.__dict__.get(name) is called:
            del target.__dict__[name]

    setattr(target, name, called)
    return undo
