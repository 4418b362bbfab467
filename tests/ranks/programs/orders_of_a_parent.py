"""Workers that lost a peer leave the group and wait for a new order of their parent, which waits for them to end.

With the number of seconds as argument the parent sleeps so long and then gives the order: nothing is wrong.
"""

import multiprocessing
import sys
import time

import torch
import torch.distributed as dist

WORLD = 3


def main(rank, orders, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    try:
        for step in range(20):
            if rank == 1 and step == 12:
                raise KeyError("leno")  # culprit
            dist.all_reduce(torch.ones(4))
            time.sleep(0.02)
        dist.barrier()
    except RuntimeError:
        dist.destroy_process_group()
        orders.get()


if __name__ == "__main__":
    context, slow_s = multiprocessing.get_context("fork"), float(sys.argv[2])
    orders = context.Queue()
    workers = [context.Process(target=main, args=(rank, orders, sys.argv[1])) for rank in range(WORLD)]
    for worker in workers:
        worker.start()
    workers[1].join()
    if slow_s:
        time.sleep(slow_s)
        for _ in range(WORLD - 1):
            orders.put("go home")
    for worker in workers:
        worker.join()
