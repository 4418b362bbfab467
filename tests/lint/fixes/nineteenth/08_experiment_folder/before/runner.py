import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import checkpoint_utils
import logger_utils


def train(args, device):
    model = DDP(nn.Linear(784, 10).to(device), device_ids=[device.index])
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    log_dir = logger_utils.get_log_dir(
        args.experiment_dir, args.workload, args.name, args.resume_last_run
    )
    metrics = logger_utils.MetricLogger(log_dir)
    global_step = 0
    if args.resume_last_run:
        global_step = checkpoint_utils.maybe_restore(log_dir, model, optimizer)

    while global_step < args.max_steps:
        x = torch.randn(128, 784, device=device)
        y = torch.randint(0, 10, (128,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_step += 1
        if global_step % args.eval_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            metrics.append({"step": global_step, "loss": mean.item() / dist.get_world_size()})
            if dist.get_rank() == 0:
                checkpoint_utils.save(log_dir, model, optimizer, global_step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment_dir", default="~/experiments")
    parser.add_argument("--workload", default="mnist")
    parser.add_argument("--name", default="baseline")
    parser.add_argument("--max_steps", type=int, default=7813)
    parser.add_argument("--eval_every", type=int, default=500)
    parser.add_argument("--resume_last_run", action="store_true")
    dist.init_process_group("nccl")
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    train(parser.parse_args(), gpu)
    dist.destroy_process_group()
