import os
import warnings
from dataclasses import asdict

import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def wandb_log_fn(project, config=None):
    import wandb

    os.environ.setdefault("WANDB_INIT_TIMEOUT", "60")
    try:
        wandb.init(project=project, config=config)
    except Exception as e:
        warnings.warn(f"wandb.init failed, no logging: {e}")
        return lambda step, **metrics: None

    def log(step, **metrics):
        wandb.log(metrics, step=step)

    return log


def prepare_trainer(cfg, rank, schedule):
    group = dist.new_group(backend="gloo")
    model = cfg.build_model(rank)
    state = cfg.build_state(model, schedule)
    dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{cfg.run_path}/state0", process_group=group)
    return state, model


def worker(rank, global_rank, cfg, stream):
    log_fn = None
    if cfg.wandb_project and global_rank == 0:
        log_fn = wandb_log_fn(cfg.wandb_project, config=asdict(cfg))
    if dist.is_initialized():
        dist.barrier()

    schedule = cfg.lr_schedule.get_schedule(len(stream))
    state, model = prepare_trainer(cfg, rank, schedule)
    for step, batch in enumerate(stream):
        loss = model(**batch).loss
        loss.backward()
        state.step()
        if log_fn is not None:
            log_fn(step, loss=loss.item())
