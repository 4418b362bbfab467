import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from segmentor import RegionSegmentor


class Streets(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.load(self.paths[index])


class Wrapped(DistributedDataParallel):
    def train_step(self, data):
        losses = self(**data)
        loss, log_vars = self.module._parse_losses(losses)
        return dict(loss=loss, log_vars=log_vars)


def main():
    dist.init_process_group("nccl")
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    data = Streets("data/streets")
    loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data), drop_last=True)
    model = Wrapped(RegionSegmentor().cuda(), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, batch in enumerate(loader):
        out = model.train_step({key: value.cuda() for key, value in batch.items()})
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(step, out["log_vars"])


if __name__ == "__main__":
    main()
