import os

import torch
import torch.distributed as dist
from torch import nn

from objective import token_objective
from rollout import complete, token_logp


class Policy(nn.Module):
    def __init__(self, vocab=64, width=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.core = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.head(self.core(self.embed(tokens))[0])


def learn(policy, opt, batch, chunk, epochs=2):
    length = batch["mask"].size(1)
    edge = batch["reward"] - batch["reward"].mean()
    old = token_logp(policy, batch["tokens"], length).detach()
    for _ in range(epochs):
        new = token_logp(policy, batch["tokens"], length)
        loss = token_objective(new, old, edge, batch["mask"], chunk)
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()


def main(rounds=200, chunk=16, limit=512):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    policy = Policy().to(device)
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(rounds):
        prompts = torch.randint(1, 64, (4, 24), device=device)
        batch = complete(policy, prompts, limit)
        learn(policy, opt, batch, chunk)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
