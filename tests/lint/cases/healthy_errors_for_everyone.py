import logging
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger(__name__)


class RemoteError(RuntimeError):
    pass


def run_and_agree(fn, *args):
    result, problem = None, None
    try:
        result = fn(*args)
    except Exception:
        problem = traceback.format_exc()
    problems = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    failed = [r for r, p in enumerate(problems) if p is not None]
    if failed:
        raise RemoteError(f"failed on ranks {failed}: {problems[failed[0]]}")
    return result


def fetch_on_rank0(fetch, url, path):
    outcome = [None]
    if dist.get_rank() == 0:
        try:
            fetch(url, path)
        except Exception as e:
            outcome[0] = repr(e)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise RemoteError(outcome[0])
    return path


def train_step(model, optimizer, batch):
    try:
        loss = model(batch).mean()
        loss.backward()
    except torch.cuda.OutOfMemoryError:
        logger.error("out of memory with a batch of %s", tuple(batch.shape))
        raise
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(cfg, build_model, build_loader, fetch):
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    path = fetch_on_rank0(fetch, cfg.url, cfg.path)
    loader = run_and_agree(build_loader, path, dist.get_rank())
    model = DDP(build_model().to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters())
    total = torch.zeros((), device=device)
    try:
        batches = iter(loader)
        for step in range(cfg.steps):
            total += train_step(model, optimizer, next(batches).to(device))
            if (step + 1) % cfg.log_every == 0:
                mean = total / cfg.log_every
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
                if dist.get_rank() == 0:
                    logger.info("%d %.4f", step + 1, mean.item())
                total.zero_()
    except Exception:
        logger.exception("rank %d gives up", dist.get_rank())
        raise
    dist.destroy_process_group()
