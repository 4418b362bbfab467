from itertools import chain

import torch
from torch.nn.parallel import DistributedDataParallel

import distributed_utils


class Trainer:
    def __init__(self, args, task, model, criterion, optimizer):
        self.args = args
        self.task = task
        self.criterion = criterion.cuda()
        self.optimizer = optimizer
        self.model = model.cuda()
        if args.distributed_world_size > 1:
            self.model = DistributedDataParallel(self.model, device_ids=[args.device_id])
        self.meters = {"oom": 0, "updates": 0}

    def train_step(self, samples):
        self.model.train()
        self.criterion.train()
        self.optimizer.zero_grad()

        logging_outputs, sample_sizes, ooms = [], [], 0
        for sample in samples:
            try:
                loss, sample_size, logging_output = self.task.train_step(
                    sample, self.model, self.criterion, self.optimizer
                )
                logging_outputs.append(logging_output)
                sample_sizes.append(sample_size)
            except RuntimeError as e:
                if "out of memory" in str(e):
                    print(f"| WARNING: ran out of memory with exception: {e};\n Skipping batch")
                    ooms += 1
                    self.optimizer.zero_grad()
                else:
                    raise e

        if self.args.distributed_world_size > 1:
            logging_outputs, sample_sizes, ooms = zip(
                *distributed_utils.all_gather_list([logging_outputs, sample_sizes, ooms])
            )
            logging_outputs = list(chain.from_iterable(logging_outputs))
            sample_sizes = list(chain.from_iterable(sample_sizes))
            ooms = sum(ooms)

        self.meters["oom"] += ooms
        if ooms == self.args.distributed_world_size * len(samples):
            print("| WARNING: OOM in all workers, skipping update")
            return None

        grad_denom = float(sum(sample_sizes))
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.mul_(self.args.distributed_world_size / grad_denom)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip_norm)
        self.optimizer.step()
        self.meters["updates"] += 1
        return logging_outputs
