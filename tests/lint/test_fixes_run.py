"""A mended program does on two ranks what it did before."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness
from unhang.lint.cards import LintSettings, chosen
from unhang.lint.checking import lint_text
from unhang.lint.reading import mended

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(0)
{setup}
layer = torch.nn.Linear(4, 4)
model = DDP(torch.nn.Sequential(layer, torch.nn.Linear(4, 1)), find_unused_parameters={unused})
x = torch.ones(2, 4) * (1 + dist.get_rank())
{step}
del model  # a group that is destroyed while DDP lives may hang
dist.barrier()
print(dist.get_rank(), [round(v, 4) for v in result.flatten().tolist()], flush=True)
dist.destroy_process_group()
"""
CASES = {
    "LNT305": ("", "result = torch.ones(3) * (1 + dist.get_rank())\nwork = dist.barrier(async_op=True)\ndist.all_reduce(result, async_op=True)\nwork.wait()"),
    "LNT409": (
        "net = torch.nn.Linear(2, 2)\ntorch.nn.init.constant_(net.weight, dist.get_rank() + 1)\n"
        "for p in net.parameters():\n    dist.broadcast(p.data, src=0)\nnet = DDP(net)",
        "result = net.module.weight.detach().clone()\ndel net",
    ),
    "LNT410": ("", "model(x).sum().backward(retain_graph=True)\nresult = layer.weight.grad"),
}  # fmt: skip


SETTINGS = LintSettings(chosen((), ("retain-graph",), ()))


def run(text: str, folder: Path) -> list[str]:
    script = folder / "program.py"
    script.write_text(text)
    done = warm.run(warm.forkrun("--eager", 2, script), folder, 60 * slowness())
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if "[" in line)


@pytest.mark.parametrize("code", CASES)
def test_the_result_is_the_same(code: str, tmp_path: Path) -> None:
    setup, step = CASES[code]
    before = textwrap.dedent(PROGRAM).format(setup=setup, step=step, unused=False)
    found = [f for _, f in lint_text("p.py", before.encode(), SETTINGS).found]
    assert [f.code for f in found] == [code]
    assert found[0].is_safe == (code != "LNT410")
    after, count = mended(before.encode(), found)
    assert count == 1
    assert lint_text("p.py", after, SETTINGS).found == []
    results = run(after.decode(), tmp_path)
    assert len(results) == 2
    if code != "LNT305":  # before, its result may be read too early: that is the fault
        assert run(before, tmp_path) == results
