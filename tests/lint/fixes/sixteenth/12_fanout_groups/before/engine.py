import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

_turn = threading.Lock()
_groups = {}
_weights = {}


def open_group(label, place, size):
    store = dist.PrefixStore(label, _get_default_store())
    return dist.ProcessGroupGloo(store, place, size, timedelta(hours=2))


def join(label, ranks):
    with _turn:
        _groups[label] = open_group(label, ranks.index(dist.get_rank()), len(ranks))
    return True


def take(label, name, shape):
    with _turn:
        box = torch.empty(shape)
        _groups[label].broadcast(box, 0).wait()
        _weights[name] = box
    return True


def held():
    return len(_weights)
