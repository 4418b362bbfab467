import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from answers import Maker
from rings import Rings


def learn(actor, opt, made, device):
    for answers in made:
        tokens = answers.tokens.to(device)
        logits = actor(tokens[:, :-1])
        logp = -nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
        loss = -(logp * answers.reward.to(device)).mean()
        loss.backward()
    opt.step()
    opt.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ring", type=int, default=2)
    parser.add_argument("--rollout-batch", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--answers-per-prompt", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    rings = Rings(args.ring)
    net = nn.Sequential(nn.Embedding(512, 128), nn.Linear(128, 512)).to(device)
    actor = DDP(net, device_ids=[device])
    opt = torch.optim.AdamW(actor.parameters(), lr=1e-5)
    maker = Maker(args, net, rings, device)
    for _ in range(100):
        prompts = torch.randint(0, 512, (args.rollout_batch // rings.count, 16))
        learn(actor, opt, maker.make(prompts), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
