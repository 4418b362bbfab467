"""Five-fold training of leaf disease classifiers on one TPU board."""
import time

import numpy as np
import pandas as pd
import timm
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.io import read_image
from torchvision.transforms.functional import resize


class CFG:
    arch = "tf_efficientnet_b3_ns"
    size = 512
    batch = 16
    epochs = 8
    folds = 5
    lr = 1e-4
    root = "/data/leaves"


class Leaves(Dataset):
    def __init__(self, frame):
        self.names = frame["image_id"].tolist()
        self.labels = frame["label"].tolist()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        image = read_image(f"{CFG.root}/train/{self.names[i]}")
        return resize(image, [CFG.size, CFG.size]).float() / 255.0, self.labels[i]


def loader_for(frame, train):
    data = Leaves(frame)
    sampler = DistributedSampler(
        data, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=train
    )
    return DataLoader(data, batch_size=CFG.batch, sampler=sampler, num_workers=2, drop_last=train)


def train_epoch(model, loader, optimizer, loss_fn):
    model.train()
    total = 0.0
    for image, label in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(image), label)
        loss.backward()
        xm.optimizer_step(optimizer)
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def valid_epoch(model, loader):
    model.eval()
    hits, seen = 0, 0
    for image, label in loader:
        hits += (model(image).argmax(1) == label).sum()
        seen += label.size(0)
    return hits.item() / seen


def train_fold(fold, train_frame, valid_frame):
    device = xm.xla_device()
    model = timm.create_model(CFG.arch, pretrained=True, num_classes=5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=CFG.lr * xm.xrt_world_size())
    loss_fn = nn.CrossEntropyLoss()
    train_loader = pl.MpDeviceLoader(loader_for(train_frame, True), device)
    valid_loader = pl.MpDeviceLoader(loader_for(valid_frame, False), device)

    best = 0.0
    for epoch in range(CFG.epochs):
        start = time.time()
        loss = train_epoch(model, train_loader, optimizer, loss_fn)
        acc = valid_epoch(model, valid_loader)
        xm.master_print(f"fold {fold} epoch {epoch} loss {loss:.4f} acc {acc:.4f} {time.time() - start:.0f}s")
        if acc > best:
            best = acc
            xm.save(model.state_dict(), f"{CFG.arch}_best_fold{fold}.pth")
    xm.save(model.state_dict(), f"{CFG.arch}_last_fold{fold}.pth")
    return best


def worker(index, flags):
    torch.manual_seed(flags["seed"])
    frame = pd.read_csv(f"{CFG.root}/train.csv")
    split = StratifiedKFold(CFG.folds, shuffle=True, random_state=flags["seed"])
    scores = []
    for fold, (a, b) in enumerate(split.split(frame, frame["label"])):
        scores.append(train_fold(fold, frame.iloc[a], frame.iloc[b]))
    xm.master_print("mean", float(np.mean(scores)))


if __name__ == "__main__":
    xmp.spawn(worker, args=({"seed": 719},), nprocs=8, start_method="fork")
