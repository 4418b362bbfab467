"""Validation of a pipelined language model."""
import logging
import math

import torch
import torch.distributed as dist

from schedule import forward_only

log = logging.getLogger(__name__)


def is_last_rank():
    return dist.get_rank() == dist.get_world_size() - 1


@torch.no_grad()
def evaluate(cfg, stages, model, batches, process_samples=None):
    model.eval()
    total = torch.zeros(2, device=stages.device)
    for _ in range(cfg.eval_iters):
        losses = forward_only(stages, model, batches, cfg.micro_batches)
        if stages.last:
            total[0] += torch.stack(losses).sum()
            total[1] += len(losses)

    collected = None
    if process_samples is not None:
        collected = forward_only(stages, model, batches, cfg.micro_batches, keep_outputs=True)

    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item(), collected


def evaluate_and_print(cfg, stages, model, batches, iteration, writer=None, process_samples=None):
    loss, collected = evaluate(cfg, stages, model, batches, process_samples)
    if is_last_rank():
        log.info("iteration %d | validation loss %.4f | ppl %.2f", iteration, loss, math.exp(min(20, loss)))
        if writer is not None:
            writer.add_scalar("validation/loss", loss, iteration)
            if collected:
                process_samples(collected, iteration, writer)
    return loss
