import os

import torch
import torch.distributed as dist

from pair_trainer import PairTrainer


class Scorer(torch.nn.Module):
    image_token = 7

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(1000, 64)
        self.see = torch.nn.Linear(192, 64)
        self.out = torch.nn.Linear(64, 1)

    def forward(self, ids, images):
        h = self.words(ids).clone()
        h[ids == self.image_token] = self.see(images)
        return self.out(h.mean(1)).squeeze(-1)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    trainer = PairTrainer(Scorer().to(device), device)
    shard = torch.load(f"pairs_{dist.get_rank()}.pt")
    for step in range(500):
        trainer.step(shard[step % len(shard)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
