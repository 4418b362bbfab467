import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from norms import clip_over_ranks
from specialist import Router, Specialist, share


def step(student, router, opt, hidden, wanted, rank):
    hidden, wanted = share(hidden), share(wanted)
    mine = router(hidden) == rank
    loss = None
    if mine.any():
        loss = torch.nn.functional.mse_loss(student(hidden[mine]), wanted[mine])
        loss.backward()
    norm = clip_over_ranks(student.parameters(), limit=1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss, norm


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    router = Router(512, dist.get_world_size()).to(local)
    student = Specialist(512).to(local)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(65536, 512), torch.randn(65536, 512))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), drop_last=True)
    for number, (hidden, wanted) in enumerate(loader):
        loss, norm = step(student, router, opt, hidden.to(local), wanted.to(local), rank)
        if number % 100 == 0 and rank == 0:
            print(number, None if loss is None else loss.item(), norm.item())
    dist.barrier()
    torch.save(student.state_dict(), f"specialist_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
