import os
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from detector import Detector


def ships(rng, size=8):
    while True:
        where = [i for i in range(size) if rng.random() < 0.3]
        yield {
            "image": torch.rand(size, 3, 256, 256),
            "where": where,
            "label": [rng.randrange(20) for _ in where],
            "box": torch.rand(len(where), 4) * 0.99,
        }


class Engine:
    def __init__(self):
        dist.init_process_group("nccl")
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        self.model = DDP(Detector().to(self.device), device_ids=[self.device.index])
        self.opt = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)

    def train(self, steps):
        batches = ships(random.Random(dist.get_rank()))
        for step in range(steps):
            batch = next(batches)
            batch["image"] = batch["image"].to(self.device)
            loss, items = self.model(batch)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            dist.all_reduce(items, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0 and step % 50 == 0:
                print(step, items.tolist())
        dist.destroy_process_group()


if __name__ == "__main__":
    Engine().train(5000)
