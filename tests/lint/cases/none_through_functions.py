"""What is None on all ranks but the first goes through functions that give something else then."""

import glob
import os

import torch
import torch.distributed as dist


def folder_of_first(root):
    if dist.get_rank() != 0:
        return None
    return os.path.join(root, "run")


def newest(folder):
    if folder is None:
        return None
    found = glob.glob(os.path.join(folder, "*.pt"))
    return max(found) if found else None


def restored(folder):
    path = newest(folder)
    if path is None:
        return 0
    return torch.load(path)["step"]


def trains(root, steps, loss):
    step = restored(folder_of_first(root))
    while step < steps:  # nothing is found at the loop itself
        dist.all_reduce(loss)  # LNT110
        step += 1


def trains_by_all(root, steps, loss):
    step = restored(os.path.join(root, "run"))
    while step < steps:
        dist.all_reduce(loss)
        step += 1


def trains_by_what_was_told(root, steps, loss):
    told = [restored(folder_of_first(root))]
    dist.broadcast_object_list(told, src=0)
    step = told[0]
    while step < steps:
        dist.all_reduce(loss)
        step += 1


def asks(root):
    if newest(folder_of_first(root)) is None:
        print("begins anew")
    dist.barrier()


def meets(root):
    if newest(folder_of_first(root)) is None:
        dist.barrier()  # LNT101


def meets_for_all(root):
    if newest(os.path.join(root, "run")) is None:
        dist.barrier()


def newest_by_truth(folder):
    if not folder:
        return None
    return os.path.join(folder, "last.pt")


def restored_by_truth(folder):
    path = newest_by_truth(folder) if folder else None
    if not path:
        return 0
    return torch.load(path)["step"]


def first_part(folder):
    return None if folder is None else os.path.join(folder, "first")


def trains_from(root, steps, loss):
    step = restored_by_truth(folder_of_first(root))
    for _ in range(step, steps):
        dist.all_reduce(loss)  # LNT110


def meets_in_part(root):
    if first_part(folder_of_first(root)) is not None:
        dist.barrier()  # LNT101


def meets_in_part_of_all(root):
    if first_part(os.path.join(root, "run")) is not None:
        dist.barrier()
