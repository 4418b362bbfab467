import os

import torch
import torch.distributed as dist
import torch.nn as nn

from flat_ddp import FlatDataParallel


class HalfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(128, 512).half()
        self.norm = nn.BatchNorm1d(512)
        self.head = nn.Linear(512, 10).half()

    def forward(self, x):
        x = self.norm(self.stem(x.half()).float())
        return self.head(torch.relu(x).half()).float()


def main():
    dist.init_process_group("nccl", init_method="env://")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = FlatDataParallel(HalfNet().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(1000):
        x = torch.randn(64, 128).cuda()
        y = torch.randint(0, 10, (64,)).cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
