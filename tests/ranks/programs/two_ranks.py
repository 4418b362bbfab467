"""Two ranks whose programs part, in the way that the argument names: no majority tells which of them is wrong."""

import os
import sys

import torch
import torch.distributed as dist
import toy


class Accelerator:
    """Names its processes as accelerate does; `is_chosen` is a name of its own."""

    @property
    def is_main_process(self):
        return dist.get_rank() == 0

    @property
    def is_chosen(self):
        return self.is_main_process

    def wait_for_everyone(self):
        dist.barrier()


def accelerate(x):
    accelerator = Accelerator()
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()  # accelerate


def own_property(x):
    if Accelerator().is_chosen:
        dist.barrier()  # own_property


def variable(x):
    chosen = dist.get_rank() == 0
    if chosen:
        dist.barrier()  # variable


def early_return(x):
    if dist.get_rank() != 0:
        return
    x.mul_(2)
    dist.barrier()  # early_return


def environment(x):
    if int(os.environ["LOCAL_RANK"]) in (-1, 0):
        dist.barrier()  # environment


def main_first(x):
    if dist.get_rank() != 0:
        dist.barrier()  # main_first waits here
    dist.all_gather([torch.zeros_like(x) for _ in range(2)], x)  # main_first gathers here
    if dist.get_rank() == 0:
        dist.barrier()


def no_condition(x):
    loss = float("nan") if os.path.exists(f"bad-{os.getpid()}") else 1.0
    if loss == loss:
        dist.barrier()  # no_condition waits here


def ended(x):
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # ended


def ended_in_loop(x):
    for step in range(5):
        if step == 4 and dist.get_rank() == 1:
            continue
        dist.all_reduce(x)  # ended_in_loop


def ended_for_no_reason(x):
    if os.path.exists(f"bad-{os.getpid()}"):
        return
    dist.all_reduce(x)  # ended_for_no_reason


def main():
    rank, fault = toy.begin(), sys.argv[1]
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank == 1 and fault in ("no_condition", "ended_for_no_reason"):
        with open(f"bad-{os.getpid()}", "w"):
            pass
    globals()[fault](x)
    if not fault.startswith("ended"):
        dist.all_reduce(x)  # main goes on


main()
