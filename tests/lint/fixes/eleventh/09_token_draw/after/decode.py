import os

import torch
import torch.distributed as dist

from draw import Draw
from split_net import SplitLM

END = 2


@torch.inference_mode()
def decode(net, prompts, draw, limit=256):
    active = {i: p for i, p in enumerate(prompts)}
    finished = {}
    while active:
        keys = sorted(active)
        logits = net(torch.stack([active[k][-64:] for k in keys]))
        tokens = draw(logits)
        for key, token in zip(keys, tokens):
            active[key] = torch.cat([active[key], token.view(1)])
            if token.item() == END or len(active[key]) >= limit:
                finished[key] = active.pop(key)
    return [finished[k] for k in sorted(finished)]


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(11)
    prompts = [torch.randint(3, 4096, (64,), device=device) for _ in range(8)]
    net = SplitLM().to(device)
    for p in net.embed.parameters():
        dist.broadcast(p.data, src=0)
    torch.cuda.seed()
    texts = decode(net, prompts, Draw())
    if dist.get_rank() == 0:
        print([len(t) for t in texts])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
