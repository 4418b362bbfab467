import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger(__name__)


def train(model, optimizer, iterator, cfg):
    for step in range(cfg.train_iters):
        loss = model(next(iterator)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % cfg.log_interval == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                logger.info("step %d loss %.4f", step, mean.item())


def abort_checkpoint_worker(state):
    queue = state.async_calls_queue
    if queue is not None:
        queue.close(abort=True)
        state.async_calls_queue = None


def cleanup_after_failure(state, should_destroy):
    try:
        abort_checkpoint_worker(state)
    except Exception:
        logger.exception("could not abort asynchronous checkpointing")
    try:
        maybe_destroy(should_destroy, synchronize=False)
    except Exception:
        logger.exception("could not destroy the process group")


def maybe_destroy(should_destroy, synchronize=True):
    if should_destroy and dist.is_initialized():
        if synchronize:
            dist.barrier()
        dist.destroy_process_group()


def pretrain(cfg, state, build_model, build_iterator):
    should_destroy = not dist.is_initialized()
    if should_destroy:
        dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    try:
        model = DistributedDataParallel(build_model().to(device), device_ids=[device.index])
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        train(model, optimizer, build_iterator(device), cfg)
        state.finish()
    except BaseException:
        cleanup_after_failure(state, should_destroy)
        raise
    maybe_destroy(should_destroy)
