import torch
import torch.distributed as dist

from dist_strategy import prepare_fsdp_module


def is_cuda_oom(e):
    return "CUDA out of memory" in str(e)


class Trainer:
    def __init__(self, model, optimizer, loader, device, microbatch_size):
        self.device = device
        self.hook_handles = prepare_fsdp_module(model, device, auto_microbatching=True)
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.microbatch_size = microbatch_size

    def _train_microbatches(self, microbatches):
        for i, microbatch in enumerate(microbatches):
            if i == 0:
                oom = torch.tensor([0], dtype=torch.uint8, device=self.device)
                dist.all_reduce(oom, op=dist.ReduceOp.MAX)
                finished = torch.tensor([0], dtype=torch.uint8, device=self.device)
                dist.all_reduce(finished, op=dist.ReduceOp.MIN)
                if oom.item() == 1:
                    raise RuntimeError("CUDA out of memory encountered on a different rank")
            loss = self.model(microbatch).mean()
            loss.backward()

    def _train_batch(self, batch):
        while True:
            found_cuda_oom = 0
            try:
                self.optimizer.zero_grad()
                self._train_microbatches(batch.split(self.microbatch_size))
            except RuntimeError as e:
                if not is_cuda_oom(e):
                    raise
                found_cuda_oom = 1
            all_ranks_finished = False
            while not all_ranks_finished:
                oom = torch.tensor([found_cuda_oom], dtype=torch.uint8, device=self.device)
                dist.all_reduce(oom, op=dist.ReduceOp.MAX)
                found_cuda_oom = oom.item()
                finished = torch.tensor([1], dtype=torch.uint8, device=self.device)
                dist.all_reduce(finished, op=dist.ReduceOp.MIN)
                all_ranks_finished = finished.item() == 1
            if found_cuda_oom == 1:
                self.microbatch_size = max(1, self.microbatch_size // 2)
                continue
            self.optimizer.step()
            return

    def fit(self):
        for batch in self.loader:
            self._train_batch(batch.to(self.device))
