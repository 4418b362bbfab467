import os
import random

import torch
import torch.distributed as dist

from engine import Engine


@torch.inference_mode()
def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    engine = Engine(width=128, depth=4, device=device)
    rng = random.Random(dist.get_rank())
    work = [rng.randrange(2, 400) for _ in range(10 + 5 * dist.get_rank())]
    for tokens in work:
        engine.turn(torch.randn(tokens, 128, device=device))
    idle = 0
    while engine.idle_turn():
        idle += 1
    print(f"rank {dist.get_rank()}: {len(work)} turns, {idle} idle")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
