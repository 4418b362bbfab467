import logging
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

from pause_gate import PauseGate

log = logging.getLogger(__name__)


def save(model, gate, root, step):
    ticket = gate.close(step)
    try:
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{root}/step_{step}")
    finally:
        gate.open(step, ticket)


def main(steps=500, every=50):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    root = os.environ.get("RUN_DIR", "run")
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    model = fully_shard(model.cuda())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    gate = PauseGate(root)
    for step in range(1, steps + 1):
        if step % every == 0:
            try:
                save(model, gate, root, step)
            except TimeoutError as err:
                log.warning("no checkpoint at step %d: %s", step, err)
        x = torch.randn(16, 512, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
