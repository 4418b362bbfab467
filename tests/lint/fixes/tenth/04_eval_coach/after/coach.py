import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from shards import PlainShard


class Coach:
    def __init__(self, net, device):
        self.device = device
        self.net = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.kept = []

    def gather(self, tensor, padding_value=None):
        world = dist.get_world_size()
        if padding_value is not None:
            rows = torch.tensor([tensor.shape[0]], device=self.device)
            dist.all_reduce(rows, op=dist.ReduceOp.MAX)
            short = int(rows) - tensor.shape[0]
            if short:
                filler = tensor.new_full((short, *tensor.shape[1:]), padding_value)
                tensor = torch.cat([tensor, filler])
        parts = [torch.empty_like(tensor) for _ in range(world)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def eval_step(self, batch):
        images, labels = (t.to(self.device) for t in batch)
        return self.net.module(images).argmax(-1), labels

    def on_eval_batch_end(self, guess, labels):
        self.kept.append((self.gather(guess, -1), self.gather(labels, -1)))

    def on_eval_end(self):
        guess = torch.cat([g for g, _ in self.kept])
        labels = torch.cat([t for _, t in self.kept])
        self.kept.clear()
        real = labels >= 0
        return (guess[real] == labels[real]).float().mean().item()

    @torch.no_grad()
    def evaluate(self, dataset, batch_size):
        self.net.eval()
        loader = DataLoader(dataset, batch_size=batch_size, sampler=PlainShard(len(dataset)))
        for batch in loader:
            guess, labels = self.eval_step(batch)
            self.on_eval_batch_end(guess, labels)
        return self.on_eval_end()
