import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from zero_head import ZeroHead


class Detector(nn.Module):
    def __init__(self, width=64, num_classes=20):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, stride=8, padding=3), nn.SiLU())
        self.head = ZeroHead(width, num_classes)

    def forward(self, image, labels, boxes):
        return self.head(self.stem(image), labels, boxes)


class AssignedImages(Dataset):
    def __init__(self, root):
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        item = torch.load(self.paths[index])
        return item["image"], item["labels"], item["boxes"]


def main():
    dist.init_process_group("nccl")
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    data = AssignedImages("data/assigned")
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Detector().cuda(), device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for image, labels, boxes in loader:
            losses = model(image.cuda(), labels.cuda(), boxes.cuda())
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
