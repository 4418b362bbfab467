"""What a rank finds in a file of its own, or does not: a result that others do not have."""

import json
import os
import pickle
import socket
import tempfile

import torch
import torch.distributed as dist


class Shelf:
    def __init__(self, root):
        self.root = root

    def _path(self, key):
        return os.path.join(self.root, f"{key}.json")

    def get(self, key):
        try:
            with open(self._path(key)) as f:
                return json.load(f)
        except (OSError, ValueError):
            return None


class Compiler:
    def __init__(self, shelf):
        self.shelf = shelf

    def plan(self, key, costs):
        found = self.shelf.get(key)
        if found is not None:
            return found  # LNT106
        dist.all_reduce(costs)
        return costs.argmin().item()


def compile_all(keys):
    compiler = Compiler(Shelf(os.path.join("/tmp/plans", os.environ["LOCAL_RANK"])))
    return [compiler.plan(k, torch.zeros(3)) for k in keys]


def load_index(folder):
    try:
        with open(f"{folder}/index_{dist.get_rank()}.pkl", "rb") as f:
            return pickle.load(f)
    except FileNotFoundError:
        return None


def index_of(folder, data):
    index = load_index(folder)
    if index is None:
        index = build(data)
        dist.barrier()  # LNT106
    return index


def resume(folder, model):
    path = os.path.join(folder, f"rank{dist.get_rank()}.pt")
    try:
        state = torch.load(path)
    except FileNotFoundError:
        state = None
    if state is None:
        for p in model.parameters():
            dist.broadcast(p, src=0)  # LNT106


def timings(name):
    path = f"{tempfile.gettempdir()}/{socket.gethostname()}_{name}.json"
    try:
        with open(path) as f:
            best = json.load(f)
    except OSError:
        best = None
    if best is None:
        cost = torch.ones(4)
        dist.all_reduce(cost)  # LNT106
        best = cost.argmin().item()
    return best


def build(data):
    return sorted(data)


# Right: the file is for all, all agree on what was found, or nobody waits.


def shared_plan(folder, key, costs):
    try:
        with open(f"{folder}/{key}.json") as f:
            found = json.load(f)
    except FileNotFoundError:
        found = None
    if found is not None:
        return found
    dist.all_reduce(costs)
    return costs.argmin().item()


def agreed_index(folder, data):
    index = load_index(folder)
    missing = torch.tensor([int(index is None)])
    dist.all_reduce(missing)
    if missing.item():
        index = build(data)
        dist.barrier()
    return index


def own_index(folder, data):
    index = load_index(folder)
    if index is None:
        index = build(data)
    dist.barrier()
    return index


# What cannot be written there: the disk of this rank is full.


def write_part(folder, rank, state):
    with open(folder / f"part-{rank:03d}.bin", "wb") as sink:
        pickle.dump(state, sink)


def store_with_tries(folder, rank, state):
    for _ in range(3):
        try:
            write_part(folder, rank, state)
        except OSError:
            continue  # LNT106
        dist.barrier()
        return True
    return False


def store_or_not(folder, state):
    try:
        torch.save(state, os.path.join(folder, f"{dist.get_rank()}.pt"))
    except (OSError, RuntimeError):
        return False  # LNT106
    dist.barrier()
    return True


def store_and_tell(folder, rank, state):
    good = torch.ones(())
    try:
        write_part(folder, rank, state)
    except OSError:
        good.zero_()
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    if not good.item():
        return False
    dist.barrier()
    return True


def store_or_end(folder, rank, state):
    try:
        write_part(folder, rank, state)
    except OSError as err:
        raise SystemExit(1) from err
    dist.barrier()


def store_for_itself(folder, rank, state):
    try:
        write_part(folder, rank, state)
    except OSError:
        print("no notes of this rank")
    dist.barrier()


def store_for_all(folder, state):
    try:
        with open(folder / "state.bin", "wb") as sink:
            pickle.dump(state, sink)
    except OSError:
        return False
    dist.barrier()
    return True


def store_again_until_done(folder, rank, state):
    for _ in range(3):
        try:
            write_part(folder, rank, state)
            break
        except OSError:
            continue
    dist.barrier()


def copy_out(folder, rank):
    own = folder / f"{rank}.bin"
    try:
        with own.open("wb") as sink:
            sink.write(b"state")
    except OSError:
        return  # LNT106
    dist.barrier()


def keep_scores(folder, scores):
    path = os.path.join(folder, "scores_%d.json" % dist.get_rank())
    try:
        with open(path, "w") as sink:
            json.dump(scores, sink)
    except OSError:
        return None  # LNT106
    dist.barrier()
    return path
