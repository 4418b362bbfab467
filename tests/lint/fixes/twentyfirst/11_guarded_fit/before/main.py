import logging
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

from keeper import Keeper
from trainer import Trainer


class Speaker:
    def on_step(self, trainer, loss):
        if trainer.step % 50 == 0 and dist.get_rank() == 0:
            logging.info("epoch %d step %d loss %.4f", trainer.epoch, trainer.step, loss.item())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    shape = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    data = datasets.ImageFolder(sys.argv[1], shape)
    loader = DataLoader(data, 64, sampler=DistributedSampler(data), num_workers=8, pin_memory=True)
    trainer = Trainer(models.resnet50(num_classes=len(data.classes)), nn.CrossEntropyLoss(),
                      lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), loader, Keeper("checkpoints"), device)
    trainer.listeners.append(Speaker())
    trainer.fit()
    dist.destroy_process_group()
