import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


class TrainActor:
    """One data-parallel worker behind the training service."""

    def __init__(self, name, micro_batch=1, lr=1e-5):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", self.rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16).to(self.device)
        for layer in self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.micro_batch = micro_batch

    def _pack(self, samples):
        width = max(len(s.tokens) for s in samples)
        ids = torch.zeros(len(samples), width, dtype=torch.long)
        weights = torch.zeros(len(samples), width)
        for row, s in enumerate(samples):
            ids[row, : len(s.tokens)] = torch.tensor(s.tokens)
            weights[row, : len(s.weights)] = torch.tensor(s.weights)
        return ids.to(self.device), weights.to(self.device)

    def forward_backward(self, samples):
        total_weight = sum(sum(s.weights[1:]) for s in samples)
        mine = samples[self.rank :: self.size]
        steps = -(-len(mine) // self.micro_batch)
        value = torch.zeros(1, device=self.device)
        for step in range(steps):
            part = mine[step * self.micro_batch : (step + 1) * self.micro_batch]
            ids, weights = self._pack(part)
            logits = self.model(input_ids=ids).logits[:, :-1]
            losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
            loss = (losses * weights[:, 1:].flatten()).sum() * self.size / max(total_weight, 1e-6)
            loss.backward()
            value += loss.detach() / self.size
        dist.all_reduce(value)
        return value.item()

    def optim_step(self, lr=None):
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm.full_tensor())
