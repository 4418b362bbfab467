"""A handler that notes the failure, and a collective that tells the others."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def told_where_the_others_ask(model, batches):
    for batch in batches:
        failed = 0
        try:
            loss = model(batch)
            flag = torch.tensor([0])
            dist.all_reduce(flag)
            loss.backward()
        except RuntimeError:
            failed = 1
        flag = torch.tensor([failed])
        dist.all_reduce(flag)


def noted_and_not_told(model, batches):
    failed = 0
    for batch in batches:
        try:
            loss = model(batch)
            dist.all_reduce(loss)
        except RuntimeError:  # LNT203
            failed += 1
    print(failed)


def told_while_the_others_are_in_backward(net, batches):
    model = DDP(net)
    for batch in batches:
        failed = 0
        try:
            model(batch).sum().backward()
        except RuntimeError:  # LNT203
            failed = 1
        flag = torch.tensor([failed])
        dist.all_reduce(flag)


def raised_where_there_are_others(net, batches):
    model = DDP(net)
    for batch in batches:
        try:
            model(batch).sum().backward()
        except RuntimeError as error:
            if "memory" in str(error):
                if dist.is_initialized():
                    raise
                continue
            raise
