import os

import torch
import torch.distributed as dist
import torch.nn as nn

from stage_link import StageLink
from stage_loop import StageLoop


def build(link, width, vocab, layers=4):
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    if link.is_first:
        parts.insert(0, nn.Embedding(vocab, width))
    if link.is_last:
        parts.append(nn.Linear(width, vocab))
    return nn.Sequential(*parts).to(link.device).eval()


def main(width=1024, vocab=32000, slots=8):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    link = StageLink(width, slots, device)
    prompts = None
    if link.is_first:
        prompts = [torch.randint(0, vocab, (slots,), device=device) for _ in range(32)]
    loop = StageLoop(build(link, width, vocab), link, prompts)
    loop.run(rounds=256)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
