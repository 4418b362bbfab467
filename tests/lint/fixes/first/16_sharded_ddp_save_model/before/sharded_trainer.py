import os

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import FullyShardedDataParallel as FullyShardedDDP
from fairscale.nn.data_parallel import ShardedDataParallel as ShardedDDP

WEIGHTS_NAME = "pytorch_model.bin"


class ShardedTrainer:
    def __init__(self, args, model, optimizer, loader):
        self.args = args
        self.loader = loader
        self.optimizer = optimizer
        if args.sharded_ddp == "simple":
            self.model = ShardedDDP(model, optimizer)
        else:
            self.model = FullyShardedDDP(model, reshard_after_forward=args.sharded_ddp == "zero_dp_3")

    def is_world_process_zero(self):
        return self.args.local_rank == -1 or dist.get_rank() == 0

    def train(self):
        for step, batch in enumerate(self.loader, start=1):
            loss = self.model(**batch).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step % self.args.save_steps == 0:
                self.save_model(os.path.join(self.args.output_dir, f"checkpoint-{step}"))

    def save_model(self, output_dir=None):
        output_dir = output_dir or self.args.output_dir
        if self.is_world_process_zero():
            self._save(output_dir)
        if self.args.local_rank != -1:
            dist.barrier()

    def _save(self, output_dir, state_dict=None):
        os.makedirs(output_dir, exist_ok=True)
        if state_dict is None:
            state_dict = self.model.state_dict()
        torch.save(state_dict, os.path.join(output_dir, WEIGHTS_NAME))
        torch.save(self.args, os.path.join(output_dir, "training_args.bin"))
