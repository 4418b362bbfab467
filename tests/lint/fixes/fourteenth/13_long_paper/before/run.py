import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from judge import Judge
from progress import Progress
from reader import Trainer

CONFIG = SimpleNamespace(lr=2e-3, eval_every=50, target=0.82, max_steps=20000, seed=11)


def papers(count, seed):
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=gen)
    pages = torch.randint(0, 5000, (count, 256), generator=gen) + 900 * labels[:, None]
    return TensorDataset(pages, labels)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    torch.manual_seed(CONFIG.seed + dist.get_rank())

    train = papers(40000, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    judge = Judge(DataLoader(papers(3000, 2), batch_size=100), device)
    progress = Progress()
    trainer = Trainer(CONFIG, judge, progress, device)

    while not progress.ended:
        sampler.set_epoch(progress.epoch)
        trainer.epoch(loader)

    dist.barrier()
    if dist.get_rank() == 0:
        print(progress)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
