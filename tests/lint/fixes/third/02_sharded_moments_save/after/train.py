import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def gather_full(value):
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    return value.cpu()


def save_moments_as_optimizer(model, opt_state, path):
    state = {}
    for i, (name, _) in enumerate(model.named_parameters()):
        state[i] = {"exp_avg_sq": gather_full(opt_state["nu"][name])}
    if not dist.is_initialized() or dist.get_rank() == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"state": state, "param_groups": []}, path)


def worker(global_rank, cfg, model, stream, trainer):
    model = fully_shard(model)
    fwd_state = trainer.init_state(model)
    for step, batch in enumerate(stream):
        fwd_state = trainer.step(fwd_state, batch)
        if cfg.save_interval and step % cfg.save_interval == 0:
            trainer.checkpoint(fwd_state)

    if getattr(cfg, "save_optimizer_state", "none") != "none":
        save_moments_as_optimizer(
            model, fwd_state.opt_state, os.path.join(cfg.run_path, "optimizer.pt")
        )

    if dist.is_initialized():
        dist.barrier()
    return fwd_state
