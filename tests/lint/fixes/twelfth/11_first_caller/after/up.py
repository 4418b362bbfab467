import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from desk import Desk
from engine import Engine

ENGINES = 2


def run(index, inboxes, outbox):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29533", rank=index, world_size=ENGINES)
    torch.manual_seed(0)
    with torch.no_grad():
        Engine(index, torch.nn.Linear(32, 32), inboxes[index], outbox).loop()
    dist.destroy_process_group()


def main():
    ctx = mp.get_context("spawn")
    inboxes, outbox = [ctx.Queue() for _ in range(ENGINES)], ctx.Queue()
    pool = mp.spawn(run, (inboxes, outbox), nprocs=ENGINES, join=False)
    desk = Desk(inboxes, outbox)
    desk.ask(0, torch.randn(3, 32))
    input("requests are served; press return to stop ")
    desk.close()
    pool.join()


if __name__ == "__main__":
    main()
