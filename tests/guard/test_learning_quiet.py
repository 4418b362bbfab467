"""Between its windows `check_learning` has nothing to look at, and takes its hooks away; it still sees what begins there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unhang.inside.guards import ending
from unhang.inside.guards.learning import LearningCheck, check_learning


@pytest.fixture
def ddp() -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    yield DistributedDataParallel(torch.nn.Linear(4, 2))
    # Not destroy_process_group: the model would be the last that holds the group, and may wait for ever when it goes.
    assert ending.destroy(10.0)


def train(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, steps: int, goes_around: bool = False
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ddp(torch.randn(8, 4)).square().mean()
        if goes_around:
            parameters = list(ddp.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
        else:
            loss.backward()
        optimizer.step()


def hooks(ddp: DistributedDataParallel) -> int:
    return len(ddp._forward_hooks) + len(ddp._forward_pre_hooks) + len(ddp.module._forward_pre_hooks)


def begun(ddp: DistributedDataParallel, rate: float = 0.01) -> tuple[LearningCheck, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate)
    return check_learning(ddp, optimizer, within=4), optimizer


def test_between_two_windows_there_are_no_hooks_on_the_modules(ddp: DistributedDataParallel) -> None:
    check, optimizer = begun(ddp)
    seen = []
    for _ in range(40):
        train(ddp, optimizer, 1)
        seen.append(hooks(ddp))
    # Judged after 4, 8, 16 and 32 steps.
    assert seen[:11] == [3] * 11
    assert seen[20:27] == [0] * 7
    assert seen[27:36] == [3] * 9
    assert not check.findings
    check.close()
    assert hooks(ddp) == 0


def test_what_begins_between_two_windows_is_found_at_the_end(ddp: DistributedDataParallel) -> None:
    check, optimizer = begun(ddp)
    train(ddp, optimizer, 22)
    assert not check.findings
    train(ddp, optimizer, 9, goes_around=True)
    assert not check.findings
    train(ddp, optimizer, 1, goes_around=True)
    assert [finding.what for finding in check.findings] == ["gradients are not reduced"]
    check.close()


def test_what_has_ended_between_two_windows_is_no_finding(ddp: DistributedDataParallel) -> None:
    check, optimizer = begun(ddp)
    train(ddp, optimizer, 21)
    train(ddp, optimizer, 4, goes_around=True)
    train(ddp, optimizer, 7)
    assert not check.findings
    check.close()


def test_a_rate_of_zero_is_looked_at_in_every_step(ddp: DistributedDataParallel) -> None:
    check, optimizer = begun(ddp)
    train(ddp, optimizer, 16)
    optimizer.param_groups[0]["lr"] = 0.0
    train(ddp, optimizer, 10)
    optimizer.param_groups[0]["lr"] = 0.01
    train(ddp, optimizer, 6)
    assert not check.findings
    optimizer.param_groups[0]["lr"] = 0.0
    train(ddp, optimizer, 32)
    assert [finding.what for finding in check.findings] == ["zero learning rate"]
    check.close()
