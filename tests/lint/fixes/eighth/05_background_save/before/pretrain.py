import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from keeper import Keeper


class Decoder(nn.Module):
    def __init__(self, vocab=4096, width=256, depth=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def main(steps=400, save_every=2):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Decoder().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    keeper = Keeper("/scratch/ckpt")
    for step in range(1, steps + 1):
        tokens = torch.randint(0, 4096, (8, 128), device="cuda")
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % save_every == 0:
            keeper.save(step, model, optimizer, {"step": step, "loss": loss.item()})
    keeper.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
