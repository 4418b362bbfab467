from __future__ import annotations

from pathlib import Path

from jobs import environment, header, python, rank_folder, write

from unhang.inside.recorder import recording

COMPILED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step(x):
    loss = model(x).sum()
    print("inside")
    loss.backward()
    optimizer.step()
    return loss

step(torch.ones(2, 4))
step(torch.ones(2, 4))
"""


def test_compiler_is_not_made_to_look_at_us(tmp_path: Path, run_dir: Path) -> None:
    script = write(tmp_path, "t.py", COMPILED)
    with_us = python(script, env=environment(run_dir, RANK="0", TORCH_LOGS="-all"))
    assert with_us.code == 0, with_us.stderr
    assert with_us.stdout == "inside\ninside\n"
    assert "Dynamo does not know how to trace" not in with_us.stderr
    assert "unhang" not in with_us.stderr
    assert header(rank_folder(run_dir, 0))[recording.STEPS] == 2
