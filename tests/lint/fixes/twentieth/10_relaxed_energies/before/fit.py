import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.loader import DataLoader

from base import BaseTrainer
from networks import SchNetLike
from relaxed import RelaxedStates


class EnergyTrainer(BaseTrainer):
    def train(self, epochs, lr):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.3)
        for epoch in range(epochs):
            self.loaders["train"].sampler.set_epoch(epoch)
            self.model.train()
            for batch in self.loaders["train"]:
                batch = batch.to(self.device)
                loss = (self.model(batch).view(-1) - batch.y_relaxed).abs().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
            self.save(epoch, optimizer)
            self.save_results(self.predict(self.loaders["val"]), "is2re_val")
            dist.barrier()


def loader(path, batch_size, shuffle):
    data = RelaxedStates(path)
    return DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data, shuffle=shuffle), num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--identifier", default="")
    parser.add_argument("--run-dir", default=".")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    loaders = {
        "train": loader("data/is2re/train.lmdb", args.batch_size, True),
        "val": loader("data/is2re/val.lmdb", args.batch_size, False),
    }
    trainer = EnergyTrainer(SchNetLike(128, 3), loaders, args.identifier, args.run_dir)
    trainer.train(args.epochs, args.lr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
