"""The ranks hold the lock on a file one after the other, and look for a file that one of them writes; keys of the store come late."""

import fcntl
import os
import time

import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    toy.train(rank)
    with open("index.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.path.exists("index"):
            time.sleep(4)
            open("index", "w").close()
        fcntl.flock(file, fcntl.LOCK_UN)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        for number in range(3):
            store.set(f"part/{number}", "there")
        time.sleep(4)
        open("index.done", "w").close()
        store.set("part/3", "there")
    while not os.path.exists("index.done"):
        time.sleep(0.1)
    store.get("part/3")
    toy.end()


main()
