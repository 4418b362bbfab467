"""A GAN whose discriminator is never averaged and whose loss scale is 0: no hang, exit code 0, and nothing learnt.

Both happened at once in a public job (a diffusion GAN, three days), behind a hang that had been mended.
"""

from __future__ import annotations

from pathlib import Path

from .guard_scripts import run

GAN = """
import torch.nn.functional as F
from torch import nn
from unhang.inside.guards.learning import check_learning
from unhang.inside.guards.replicas import check_replicas

def request(module, on):
    for parameter in module.parameters():
        parameter.requires_grad_(on)

def gan(steps=8, guarded=True, inner_penalty=False, static_graph=True, scaler=None, around=False):
    torch.manual_seed(0)
    kw = dict(static_graph=static_graph, gradient_as_bucket_view=True, forward_sync_buffers=False)
    ddp = nn.parallel.DistributedDataParallel
    g = ddp(nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 4)), **kw)
    d = ddp(nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)), **kw)
    og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    checks = {}
    if guarded:
        checks = {"G": check_learning(g, og, scaler, within=6), "D": check_learning(d, od, scaler, within=6)}
        replicas = check_replicas(d, every=4, optimizer=od)
    torch.manual_seed(10 + rank)
    for step in range(steps):
        request(d, True)
        request(g, False)
        od.zero_grad()
        x = torch.randn(4, 4).requires_grad_(True)
        critic = d.module if around else d
        loss = F.softplus(-critic(x)).mean()
        if step % 4 == 0 and not around:
            through = d.module if inner_penalty else d
            (slope,) = torch.autograd.grad(through(x).sum(), x, create_graph=True)
            loss = loss + slope.square().sum()
        with torch.no_grad():
            made = g(torch.randn(4, 3))
        loss = loss + F.softplus(critic(made)).mean()
        if scaler is not None:
            scaler.scale(loss * float("inf")).backward()
            scaler.step(od)
        else:
            loss.backward()
            od.step()
        request(d, False)
        request(g, True)
        og.zero_grad()
        loss = F.softplus(-d(g(torch.randn(4, 3)))).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(og)
            scaler.update()
        else:
            loss.backward()
            og.step()
    weight = d.module[0].weight.detach().clone()
    everyone = [torch.zeros_like(weight) for _ in range(world)]
    dist.all_gather(everyone, weight)
    say("same" if all(bool((w == weight).all()) for w in everyone) else "diverged")
    for name, check in checks.items():
        check.close()
        say(name, [f.what for f in check.findings])
    if guarded:
        replicas.close()

begin()
"""

END = """
dist.barrier()
dist.destroy_process_group()
"""


def test_without_the_check_the_job_ends_well_and_the_discriminator_has_diverged(tmp_path: Path) -> None:
    result = run(tmp_path, GAN + "gan(guarded=False)" + END, 2)
    assert result.code == 0, result
    assert result.said(0) == ["diverged"], result
    assert "[learning]" not in result.err, result


def test_a_discriminator_that_is_never_reduced(tmp_path: Path) -> None:
    result = run(tmp_path, GAN + "gan()" + END, 2)
    assert result.code == 0, result
    for rank in range(2):
        assert result.said(rank) == ["diverged", "G []", "D ['gradients are not reduced']"], result
    told = "rank 1: DDP module Sequential has not reduced its gradients before the last"
    assert told in result.err, result
    assert "with static_graph=True; torch.autograd.grad() through a DDP module has this effect" in result.err, result
    assert "[replicas] replicas differ since step 4: first in 0.weight" in result.err, result


def test_the_same_gan_done_right_is_not_accused(tmp_path: Path) -> None:
    body = GAN + "gan(inner_penalty=True, static_graph=False, steps=14)" + END
    result = run(tmp_path, body, 2)
    assert result.code == 0, result
    for rank in range(2):
        assert result.said(rank) == ["same", "G []", "D []"], result
    assert "replicas differ" not in result.err, result


def test_a_loss_scale_that_goes_to_zero(tmp_path: Path) -> None:
    body = (
        GAN + 'gan(scaler=torch.amp.GradScaler("cpu", init_scale=2e-3), inner_penalty=True, static_graph=False)' + END
    )
    result = run(tmp_path, body, 2)
    assert result.code == 0, result
    said = result.said(0)
    assert said[0] == "same", result
    assert "'loss scale collapsed'" in said[1], result
    assert said[2] == "D ['loss scale collapsed', 'steps skipped']", result
    assert "[learning] rank 0: the GradScaler skipped 6 of the last 6 optimizer steps" in result.err, result


def test_a_discriminator_that_is_trained_around_its_wrapper(tmp_path: Path) -> None:
    # The generator's step sends the frozen discriminator through its wrapper: that is no training of it.
    result = run(tmp_path, GAN + "gan(around=True, static_graph=False)" + END, 2)
    assert result.code == 0, result
    assert result.said(1) == ["diverged", "G []", "D ['goes around DDP']"], result
    assert "the training goes around DDP module Sequential: 12 forward passes went to its inner module" in result.err, (
        result
    )


def test_forward_around_the_wrapper_and_no_sync_alone(tmp_path: Path) -> None:
    body = """
from torch import nn
from unhang.inside.guards.learning import check_learning
begin()
for way in ("around", "no_sync", "through", "evaluation"):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    check = check_learning(ddp, optimizer, within=4)
    for step in range(5):
        optimizer.zero_grad()
        x = torch.randn(2, 4)
        if way == "around":
            ddp.module(x).sum().backward()
        elif way == "no_sync":
            with ddp.no_sync():
                ddp(x).sum().backward()
        else:
            with ddp.no_sync():
                ddp(x).sum().backward()
            ddp(x).sum().backward()
        if way == "evaluation":
            ddp.eval()
            with torch.no_grad():
                ddp.module(x)
            ddp.train()
        optimizer.step()
    check.close()
    say(way, [f.what for f in check.findings])
    del ddp, optimizer, check
dist.barrier()
dist.destroy_process_group()
"""
    result = run(tmp_path, body, 2)
    assert result.code == 0, result
    assert result.said(0) == [
        "around ['goes around DDP']",
        "no_sync ['always in no_sync']",
        "through []",
        "evaluation []",
    ], result
