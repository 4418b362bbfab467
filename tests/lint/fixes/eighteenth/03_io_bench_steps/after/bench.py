import argparse
import logging
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from plan import BenchPlan

log = logging.getLogger("bench")


class NpzFiles(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with np.load(self.files[i]) as archive:
            return torch.from_numpy(archive["x"].astype(np.float32))


class Stopwatch:
    def __init__(self):
        self.load, self.compute = 0.0, 0.0
        self.mark = time.time()

    def lap(self, name):
        now = time.time()
        setattr(self, name, getattr(self, name) + now - self.mark)
        self.mark = now


class Benchmark:
    def __init__(self, plan):
        self.plan = plan
        self.loader = DataLoader(
            NpzFiles(plan.files), batch_size=plan.batch_size,
            num_workers=plan.read_threads, drop_last=True,
        )

    def compute(self, batch):
        time.sleep(self.plan.computation_time)
        return batch.mean()

    def train_epoch(self, epoch):
        watch = Stopwatch()
        step = 0
        for batch in self.loader:
            watch.lap("load")
            self.compute(batch)
            dist.barrier()
            watch.lap("compute")
            step += 1
            if self.plan.checkpoint_every and step % self.plan.checkpoint_every == 0:
                self.checkpoint(epoch, step)
        return step, watch

    def checkpoint(self, epoch, step):
        torch.save({"epoch": epoch, "step": step}, f"ckpt_{dist.get_rank()}.pt")

    def run(self):
        for epoch in range(self.plan.epochs):
            steps, watch = self.train_epoch(epoch)
            log.info("rank %d epoch %d: %d of %d steps, load %.1fs compute %.1fs",
                     self.plan.rank, epoch, steps, self.plan.steps, watch.load, watch.compute)


def main():
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("data_folder")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    plan = BenchPlan(args.data_folder, dist.get_rank(), dist.get_world_size(),
                     batch_size=args.batch_size, epochs=args.epochs).build()
    Benchmark(plan).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
