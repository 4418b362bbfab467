"""All ranks ask the store, again and again, for what a thread of rank 0 finds out slowly."""

import threading
import time

import torch
import torch.distributed as dist


def answer(store: dist.Store) -> None:
    time.sleep(7)
    store.set("answer", "1")


def main() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        threading.Thread(target=answer, args=(store,)).start()
    while not store.check(["answer"]):
        time.sleep(0.1)
    dist.barrier()


main()
