import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from examine import examine, make_scores

CLASSES = 6


def blobs(count, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=gen)
    x = torch.randn(count, 20, generator=gen) + y[:, None]
    return TensorDataset(x, y)


def work(rank, world, epochs):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29571", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)

    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
    ddp = DDP(model, device_ids=[rank], broadcast_buffers=False)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
    loss_fn = nn.CrossEntropyLoss()

    train_set = blobs(6000, 0)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=50, sampler=sampler)
    test_loader = DataLoader(blobs(1200, 1), batch_size=100)
    scores = make_scores(CLASSES, device)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in train_loader:
            opt.zero_grad()
            loss = loss_fn(ddp(x.to(device)), y.to(device))
            loss.backward()
            opt.step()
        if rank == 0:
            report = examine(model, test_loader, scores, device)
            print(f"epoch {epoch}: {report}")

    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(work, args=(count, 5), nprocs=count)
