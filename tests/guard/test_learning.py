"""What keeps a model from learning, one training loop for each; and loops that must not be accused."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from unhang.inside.guards import learning
from unhang.inside.guards.learning import LearningCheck, check_learning


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    steps: int = 6,
    loss_of: Callable[[torch.Tensor, int], torch.Tensor] = lambda out, step: out.square().mean(),
    scaler: Any = None,
    accumulate: int = 1,
) -> None:
    for step in range(steps):
        if optimizer is not None:
            optimizer.zero_grad()
        for _ in range(accumulate):
            loss = loss_of(model(torch.randn(8, 4) + 1), step)
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif optimizer is not None:
            optimizer.step()


def names(check: LearningCheck) -> list[str]:
    check.close()
    return [finding.what for finding in check.findings]


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def test_a_model_that_learns(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    check = check_learning(model, optimizer, within=5)
    train(model, optimizer, 40)
    assert names(check) == []
    assert check.steps == 40
    assert capsys.readouterr().err == ""


def test_gradient_accumulation_is_no_missing_step() -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=5)
    train(model, optimizer, 6, accumulate=32)
    assert names(check) == []


def test_warm_up_from_zero_is_no_zero_rate() -> None:
    model = net()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    check = check_learning(model, optimizer, within=4)
    for _ in range(8):
        train(model, optimizer, 1)
        scheduler.step()
    assert names(check) == []


def test_the_optimizer_never_steps(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=5)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
    assert names(check) == ["no optimizer step"]
    assert "[learning] 5 backward passes, and no step of the optimizer; is step() called" in capsys.readouterr().err


def test_never_stepped_nor_cleared_takes_longer_to_tell_from_accumulation() -> None:
    model = net()
    check = check_learning(model, sgd(model), within=5)
    train(model, None, 49)
    assert check.findings == []
    train(model, None, 1)
    assert names(check) == ["no optimizer step"]


def test_a_loss_scale_that_collapses(capsys: pytest.CaptureFixture[str]) -> None:
    # The scale of the GAN in the public logs: down to 0.0, and nothing stepped for three days.
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    check = check_learning(model, optimizer, scaler, within=20)
    train(model, optimizer, 20, lambda out, step: out.mean() * float("inf"), scaler)
    assert names(check) == ["loss scale collapsed", "steps skipped"]
    told = capsys.readouterr().err
    assert "[learning] the loss scale has fallen to 1.91e-06" in told
    assert "[learning] the GradScaler skipped 20 of the last 20 optimizer steps" in told


def test_a_scale_that_collapses_later_is_found_later() -> None:
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    check = check_learning(model, optimizer, scaler, within=10)
    train(model, optimizer, 10, scaler=scaler)
    assert check.findings == []
    train(model, optimizer, 31, lambda out, step: out.mean() * float("nan"), scaler)
    assert sorted(names(check)) == ["loss scale collapsed", "steps skipped"]


def test_a_scaler_that_looks_for_its_scale_is_not_accused() -> None:
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    check = check_learning(model, optimizer, scaler, within=5)
    train(model, optimizer, 20, lambda out, step: out.mean() * (float("inf") if step < 6 else 1), scaler)
    assert check.attempts == 20
    assert names(check) == []


def test_a_script_that_goes_around_its_scaler_is_judged_all_the_same() -> None:
    model = net()
    optimizer = sgd(model, 0.0)
    check = check_learning(model, optimizer, torch.amp.GradScaler("cpu"), within=3)
    train(model, optimizer, 5)
    assert names(check) == ["zero learning rate"]


def test_zero_gradients() -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=4)
    train(model, optimizer, 4, lambda out, step: out.mean() * 0)
    assert names(check) == ["gradients are zero"]


def test_no_gradients() -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=4)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.zero_grad()
        optimizer.step()
    assert names(check) == ["no gradients"]


def test_gradients_that_are_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=4)
    train(model, optimizer, 4, lambda out, step: out.mean() * float("nan"))
    assert names(check) == ["gradients are not finite"]
    assert "NaN or Inf in the gradients of 0.bias, 0.weight, 2.bias and 1 more" in capsys.readouterr().err


def test_one_step_without_finite_gradients_is_nothing() -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=6)
    train(model, optimizer, 6, lambda out, step: out.mean() * (float("nan") if step == 5 else 1))
    assert names(check) == []


def test_updates_that_are_too_small_for_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = sgd(model, 1e-6)
    check = check_learning(model, optimizer, within=4)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert names(check) == ["parameters do not change"]
    assert "weight did not change in 4 steps, with gradients" in capsys.readouterr().err


def test_a_group_with_rate_zero_is_frozen_on_purpose() -> None:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    check = check_learning(model, optimizer, within=4)
    train(model, optimizer, 4)
    assert names(check) == []


def test_parameters_in_no_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = sgd(model[0])
    check = check_learning(model, optimizer, within=3)
    train(model, optimizer, 3)
    assert names(check) == ["in no optimizer"]
    assert "in no optimizer, though to be trained: 2.weight, 2.bias;" in capsys.readouterr().err


def test_an_optimizer_of_a_model_that_was_replaced() -> None:
    optimizer = sgd(net())
    model = net()
    check = check_learning(model, optimizer, within=3)
    train(model, optimizer, 3)
    assert "in no optimizer" in names(check)


def test_two_optimizers_given_or_seen() -> None:
    model = net()
    first, second = sgd(model[0]), sgd(model[2])
    given, seen = check_learning(model, [first, second], within=3), check_learning(model, first, within=3)
    for _ in range(4):
        train(model, first, 1)
        second.step()
    assert names(given) == []
    assert names(seen) == []
    assert given.steps == 4


def test_frozen_parameters_are_nobodys_business() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = sgd(model[2])
    check = check_learning(model, optimizer, within=3)
    train(model, optimizer, 3)
    assert names(check) == []


def test_an_error_of_ours_ends_the_check_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()
    optimizer = sgd(model)
    check = check_learning(model, optimizer, within=2)

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(learning.Window, "unchanged", fail)
    train(model, optimizer, 4)
    assert check.steps == 2
    assert "[learning] the check ends: MemoryError: no room" in capsys.readouterr().err


def test_closing_takes_everything_back() -> None:
    model, scaler = net(), torch.amp.GradScaler("cpu")
    optimizer = sgd(model)
    check = check_learning(model, optimizer, scaler, within=2)
    assert "step" in scaler.__dict__
    check.close()
    assert "step" not in scaler.__dict__
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    train(model, optimizer, 4, scaler=scaler)
    assert check.attempts == 0


def test_judge_now() -> None:
    model = net()
    optimizer = sgd(model, 0.0)
    check = check_learning(model, optimizer, within=100)
    train(model, optimizer, 2)
    assert [finding.what for finding in check.judge_now()] == ["zero learning rate"]
    check.close()


def test_the_example_in_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    import unhang

    monkeypatch.setattr(unhang, "check_learning", check_learning, raising=False)
    example = re.search(r"```python\n(.*?)```", check_learning.__doc__ or "", re.DOTALL)
    assert example is not None
    exec(textwrap.dedent(" " * 8 + example[1].lstrip()), {})
