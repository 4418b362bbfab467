import torch
import torch.distributed as dist


def is_main():
    return dist.get_rank() == 0


def barrier():
    dist.barrier()


def main_says(flag):
    box = torch.tensor([int(flag)], device="cuda")
    dist.broadcast(box, src=0)
    return bool(box.item())
