import os

import torch
import torch.distributed as dist

from stage import Stage


@torch.inference_mode()
def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stage = Stage(width=256, vocab=1000, ahead=4, device=device)
    counts = []
    for _ in range(20):
        tokens = stage.turn(rows=16)
        counts.append(int((tokens >= 0).sum()))
    if dist.get_rank() == 0:
        print(counts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
