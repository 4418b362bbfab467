"""Replicas that drift apart in real jobs: without the check nobody notices; with it the tensor and the rank are named."""

from __future__ import annotations

from pathlib import Path

from unhang.inside.guards.replicas import check_replicas

from .guard_scripts import Ended, example_of, run

JOB = """
from unhang.inside.guards.replicas import check_replicas
from unhang.errors import RanksDiffer
from torch import nn

def model(**options):
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    return nn.parallel.DistributedDataParallel(plain, **options)

def train(ddp, steps, fault=lambda step: None, **options):
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
    replicas = check_replicas(ddp, **options)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * rank + step))
        (ddp(x) - x.sum(1, keepdim=True)).square().mean().backward()
        fault(step)
        optimizer.step()
    return replicas

def spoil(ddp, at, who=2):
    def fault(step):
        if step == at and rank == who:
            with torch.no_grad():
                ddp.module[3].weight[0, 3] += 1e-3
    return fault
"""


def job(folder: Path, body: str, ranks: int = 4, limit_s: float = 45) -> Ended:
    return run(folder, JOB + body, ranks, limit_s=limit_s)


def test_without_the_check_a_model_drifts_apart_and_the_job_ends_well(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
ddp = model()
train(ddp, 6, spoil(ddp, 3), every=1000)
say(ddp.module[3].weight[0, 3].item())
del ddp
dist.destroy_process_group()
""",
    )
    assert result.code == 0, result
    assert "differ" not in result.err, result
    assert result.said(0) != result.said(2), result


def test_the_first_tensor_and_the_rank_are_told_and_training_goes_on(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
ddp = model()
replicas = train(ddp, 9, spoil(ddp, 3), every=2)
replicas.close()
say("end", replicas.difference.step, replicas.difference.equal_step, replicas.difference.ranks)
del ddp, replicas
dist.destroy_process_group()
""",
    )
    assert result.code == 0, result
    told = "[replicas] replicas differ since step 4 (equal at step 2): first in 3.weight, rank 2 differs from ranks 0, 1, 3"
    assert result.err.count("replicas differ") == 1, result
    assert told in result.err, result
    for rank in range(4):
        assert result.said(rank) == ["end 4 2 (2,)"], result


def test_all_ranks_raise_the_same_at_the_same_step(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
ddp = model()
try:
    train(ddp, 200, spoil(ddp, 5, 0), every=3, on_differ="raise")
except RanksDiffer as error:
    say(error)
del ddp
dist.barrier()
dist.destroy_process_group()
""",
    )
    assert result.code == 0, result
    for rank in range(4):
        assert result.said(rank) == [
            "replicas differ since step 6 (equal at step 3): first in 3.weight, rank 0 differs from ranks 1-3"
        ], result


def test_a_healthy_model_with_batch_norm_is_not_accused(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
for options in ({}, {"forward_sync_buffers": False}):
    ddp = model(**options)
    replicas = train(ddp, 7, every=2)
    say(replicas.check_now(), replicas.equal_step)
    replicas.close()
    del ddp, replicas
dist.destroy_process_group()
""",
        ranks=2,
    )
    assert result.code == 0, result
    assert "differ s" not in result.err, result
    assert "[replicas] not compared, DDP copies them from rank 0 before every forward" in result.err, result
    assert "each rank has the statistics of its own batches: 1.running_mean, 1.running_var" in result.err, result
    assert result.said(1) == ["None 7", "None 7"], result


def test_a_rank_that_skips_steps_is_found_and_the_check_does_not_hang_the_job(tmp_path: Path) -> None:
    # Rank 1 skips three optimizer steps (not the reductions): it comes later to each comparison than the others.
    result = job(
        tmp_path,
        """
begin()
ddp = model()
optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
replicas = check_replicas(ddp, every=2)
for step in range(1, 13):
    optimizer.zero_grad()
    ddp(torch.full((8, 4), float(step))).square().mean().backward()
    if not (rank == 1 and step in (4, 5, 6)):
        optimizer.step()
say(replicas.steps)
dist.barrier()
replicas.close()
del ddp, optimizer, replicas
dist.destroy_process_group()
""",
        ranks=3,
        limit_s=55,
    )
    assert result.code == 0, result
    assert not result.was_ended, result
    assert "replicas differ since step" in result.err, result
    assert "rank 1 differs from ranks 0, 2" in result.err, result


def test_a_rank_that_ends_early_does_not_keep_the_others(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
plain = nn.Linear(4, 1)
replicas = check_replicas(plain, every=1, limit_s=2)
for step in range(3 if rank == 1 else 5):
    replicas.step()
replicas.close()
say("end")
dist.destroy_process_group()
""",
        ranks=3,
    )
    assert not result.was_ended, result
    assert result.code == 0, result
    assert [result.said(rank) for rank in range(3)] == [["end"]] * 3, result


def test_models_that_are_built_differently(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
plain = nn.Linear(4, 2 if rank == 1 else 1)
replicas = check_replicas(plain, every=1)
say(replicas.check_now())
strict = check_replicas(plain, every=1, on_differ="raise")
try:
    strict.check_now()
except RanksDiffer as error:
    say(error)
dist.destroy_process_group()
""",
        ranks=3,
    )
    assert result.code == 0, result
    text = "the model is not built alike on all ranks: ranks 0, 2; rank 1 differ"
    assert f"no more comparisons: {text}" in result.err, result
    for rank in range(3):
        assert result.said(rank) == ["None", text], result


def test_a_rank_that_does_not_call_it_is_named(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
plain = nn.Linear(4, 1)
if rank != 1:
    check_replicas(plain, limit_s=1)
    try:
        check_replicas(plain, limit_s=1, on_differ="raise")
    except RanksDiffer as error:
        say(error)
dist.barrier()
dist.destroy_process_group()
""",
        ranks=3,
    )
    assert result.code == 0, result
    assert "[replicas] not compared: RanksDiffer: rank 1 did not come to check_replicas within 1 s" in result.err, (
        result
    )
    assert result.said(0) == ["rank 1 did not come to check_replicas within 1 s"], result


def test_a_sharded_model_is_left_out_and_said(tmp_path: Path) -> None:
    result = job(
        tmp_path,
        """
begin()
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
plain = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
fully_shard(plain[0], mesh=init_device_mesh("cpu", (world,)))
replicas = check_replicas(plain)
with torch.no_grad():
    plain[1].bias += rank
say(replicas.check_now())
del plain, replicas
dist.destroy_process_group()
""",
        ranks=2,
    )
    assert result.code == 0, result
    assert "[replicas] not compared, each rank holds its own part: 0.weight, 0.bias" in result.err, result
    assert result.said(0) == ["replicas differ since step 0: first in 1.bias, no majority: rank 0; rank 1 differ"], (
        result
    )


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    begin = "begin()\nimport unhang\nunhang.check_replicas = check_replicas\n"
    result = job(tmp_path, begin + example_of(check_replicas) + "\ndist.destroy_process_group()\n", ranks=2)
    assert result.code == 0, result
    assert "[replicas]" not in result.err, result
