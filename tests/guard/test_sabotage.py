"""Each function inside the guards fails once, in all ranks of a job with all guards: the training ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ranks.guarded import run

PROGRAM = """
import importlib, inspect, sys, time
import torch, torch.distributed as dist, unhang
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel
from unhang.inside.guards import exchange

exchange._VERDICT_EXTRA_S = 0.2
MODULES = (
    "section section_states exchange heartbeat step_clock loader forecast weighing learning probes "
    "replicas comparing checksums worker words board job ending installing"
)
# What a script calls itself, and what only sets names and numbers in memory, which does not fail.
PUBLIC = {
    "section", "sections", "heartbeat", "watch_loader", "check_loader", "check_learning", "check_replicas",
    "Heartbeat.step", "Heartbeat.phase", "Heartbeat.close", "LearningCheck.close", "Replicas.step", "Replicas.check_now", "Replicas.close",
}
IN_MEMORY = {
    "Registry.numbers_of", "Registry.left_late", "Registry.wake", "Heartbeat._wake", "Worker.wake", "Worker.stop", "Wakeup.set", "Wakeup.wait",
    "StepClock.step", "StepClock._count", "StepClock.switch", "_Watch.stop", "LearningCheck._safely",
    "LearningCheck._step_begins", "LearningCheck._step_ended",
    "Replicas._begin", "Replicas._judge", "Replicas._guarded", "Replicas._stop", "Replicas._end",
}

def train(guarded):
    torch.manual_seed(3)
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1)))
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader([torch.randn(4, 8) for _ in range(3)], batch_size=None)
    if guarded:
        unhang.check_loader(loader)
        learning = unhang.check_learning(ddp, opt, within=2)
        replicas = unhang.check_replicas(ddp, every=1, optimizer=opt, limit_s=1)
        heart = unhang.heartbeat(every=2, limit=0.05)
        loader = unhang.watch_loader(loader)
    for batch in loader:
        if guarded:
            with unhang.section("step", limit_s=0.0001), heart.phase("data"):
                time.sleep(0.001)
        opt.zero_grad()
        ddp(batch).square().mean().backward()
        opt.step()
        if guarded:
            heart.step(loss=1.0)
    if guarded:
        replicas.check_now()
        for guard in (heart, replicas, learning):
            guard.close()
    return torch.cat([p.detach().flatten() for p in ddp.parameters()])

def inside(module):
    for name, found in vars(module).items():
        if getattr(found, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(found):
            yield module, name, name
        if inspect.isclass(found):
            for inner, function in vars(found).items():
                if inspect.isfunction(function) and not inner.startswith("__"):
                    yield found, inner, f"{name}.{inner}"

calls = 0

def failing(*_, **__):
    global calls
    calls += 1
    raise RuntimeError("injected")

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
expected = train(False)
tried = reached = 0
for module in MODULES.split():
    for number, (owner, name, label) in enumerate(inside(importlib.import_module(f"unhang.inside.guards.{module}"))):
        if label in PUBLIC | IN_MEMORY or number % 2 != int(sys.argv[1]):
            continue
        before, calls, tried = getattr(owner, name), 0, tried + 1
        setattr(owner, name, failing)
        try:
            found = train(True)
            if not torch.equal(found, expected):
                print(f"DIFFERS {module}: {label}", flush=True)
        except BaseException as error:
            print(f"RAISED {module}: {label}: {error!r}", flush=True)
        finally:
            setattr(owner, name, before)
        reached += calls > 0
print(f"tried {tried} reached {reached}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("part", ["0", "1"])
def test_whatever_fails_inside_the_training_is_the_same(part: str, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, part, limit_s=55)
    assert ended.exit_code == 0, ended
    assert "DIFFERS" not in ended.out, ended
    assert "RAISED" not in ended.out, ended
    counts = [line.split() for line in ended.out.splitlines() if line.startswith("tried")]
    assert len(counts) == 2, ended
    assert all(int(tried) > 100 and int(reached) > 30 for _, tried, _, reached in counts), ended
