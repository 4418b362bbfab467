import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, kernel_size=3)
        self.fc = nn.Linear(8 * 26 * 26, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def validate(model, loader, gpu):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += nn.functional.cross_entropy(model(x.cuda(gpu)), y.cuda(gpu)).item()
    return total


def main(gpu, world_size, train_loader, val_loader):
    dist.init_process_group("nccl", rank=gpu, world_size=world_size)
    torch.cuda.set_device(gpu)
    model = DDP(Classifier().cuda(gpu), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(10):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x.cuda(gpu)), y.cuda(gpu))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if gpu == 0:
            print(epoch, validate(model.module, val_loader, gpu))
        dist.barrier()
