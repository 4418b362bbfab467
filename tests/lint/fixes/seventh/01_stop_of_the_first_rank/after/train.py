import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from stopping import EarlyStopping
from val import fitness_of


def train(opt, model, train_loader, val_loader, optimizer, rank):
    if rank != -1:
        model = DDP(model, device_ids=[opt.local_rank])
    stopper = EarlyStopping(patience=opt.patience)
    stop = False
    for epoch in range(opt.epochs):
        model.train()
        for images, targets in train_loader:
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank in (-1, 0):
            fitness = fitness_of(model.module if rank != -1 else model, val_loader)
            stop = stopper(epoch=epoch, fitness=fitness)
        if rank != -1:
            decision = [stop if rank == 0 else None]
            dist.broadcast_object_list(decision, 0)
            stop = decision[0]
        if stop:
            break

    return model
