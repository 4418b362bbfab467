"""All ranks go the same way, or make the same calls on another one: what code that nobody here wrote was wrongly accused of."""

import os
import queue
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather

accelerator = Accelerator()


def a_folder_named_by_the_hour(args, x):
    args.save = os.path.join(args.root, datetime.now().strftime("%H-%M"))
    if args.save:
        dist.all_reduce(x)


def until_the_time_is_over(x, limit):
    began = time.monotonic()
    for _ in range(100):
        dist.all_reduce(x)
        is_late = time.monotonic() - began > limit
        if is_late:
            break  # LNT106


class Turns:
    """The first rank goes first."""

    def __enter__(self):
        if dist.get_rank() != 0:
            dist.barrier()

    def __exit__(self, *of):
        if dist.get_rank() == 0:
            dist.barrier()


class OneSide:
    def __enter__(self):
        if dist.get_rank() != 0:
            dist.barrier()  # LNT101

    def __exit__(self, *of):
        print("done")


def the_same_again(x):
    for _ in range(10):
        try:
            with torch.no_grad():
                dist.all_reduce(x)
        except RuntimeError:
            dist.all_reduce(x)


def no_more_of_it(x):
    for _ in range(10):
        try:
            with torch.no_grad():
                dist.all_reduce(x)
        except RuntimeError:  # LNT203
            print("next")


def layers_there(parts, rank):
    if rank == 0:
        for part in parts:
            dist.broadcast(part.weight, 0)
            dist.broadcast(part.bias, 0)
    else:
        for part in parts:
            dist.broadcast(part, 0)


def once_there(part, rank):
    if rank == 0:
        dist.broadcast(part.weight, 0)
        dist.broadcast(part.bias, 0)  # LNT101
    else:
        dist.broadcast(part, 0)


def orders(work):
    while True:
        text = ""
        if dist.get_rank() == 0:
            text = input()
            if not text:
                continue
        told = [text, False]
        dist.broadcast_object_list(told)
        text, is_last = told
        if is_last:
            return
        work(text)


def in_each_round(x, rank):
    for _ in range(10):
        if rank == 0:
            continue  # LNT102
        dist.all_reduce(x)


def without_a_gather(model, own):
    accelerator.get_state_dict = lambda _: own
    if accelerator.is_main_process:
        accelerator.save_model(model, "out")


def forked(pid, x):
    if os.getpid() != pid:
        return
    dist.all_reduce(x)


def build(x, together=True):
    if together:
        dist.barrier()
    return x


def in_threads(items):
    dist.barrier()
    with ThreadPoolExecutor() as executor:
        return [executor.submit(build, x, False) for x in items]


def dense_by_itself(x):
    return gather(x.t())


def layer_by_layer(tree, x):
    todo = queue.Queue()
    todo.put(tree)
    while not todo.empty():
        dist.all_reduce(x)
        todo.put(todo.get().parts)


def adapters(cfg, x):
    has_adapters = cfg.lora.rank > 0
    if has_adapters:
        dist.all_reduce(x)


def alone():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        address, port = s.getsockname()
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", world_size=1, rank=0)


def meet(rank, port=None):
    os.environ["MASTER_PORT"] = str(port if port else find_free_port())
    dist.init_process_group("gloo", rank=rank)
