import os
import random

import torch
import torch.distributed as dist

from worker import Worker


@torch.inference_mode()
def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    worker = Worker(device, slots=8 * dist.get_world_size())
    rng = random.Random(dist.get_rank())
    worker.admit(rng.randrange(20, 200) for _ in range(6))
    turns = 0
    while True:
        any_busy = torch.tensor([int(worker.busy)], device=device)
        dist.all_reduce(any_busy, op=dist.ReduceOp.MAX)
        if not any_busy.item():
            break
        worker.turn() if worker.busy else worker.idle_turn()
        turns += 1
    print(f"rank {dist.get_rank()}: {turns} turns")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
