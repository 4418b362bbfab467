"""What one rank alone refuses, before all meet, and somebody around both takes for an answer."""

import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


def lengths(waves, limit):
    counts = torch.zeros(len(waves))
    if dist.get_rank() == 0:
        if limit <= 0:
            raise ValueError("the limit must be positive")
        counts.copy_(torch.tensor([w.shape[0] for w in waves]))
    dist.broadcast(counts, src=0)
    return counts


def serve(requests):
    while True:
        box = [next(requests)]
        dist.broadcast_object_list(box, src=0)
        try:
            counts = lengths(*box[0])
        except ValueError as e:  # LNT203
            print("refused", e)
            continue
        dist.all_reduce(counts)


def wait_for(marker, limit=300.0):
    end = time.monotonic() + limit
    while not marker.exists():
        if time.monotonic() > end:
            raise TimeoutError(marker)
        time.sleep(0.5)


class Gate:
    def __init__(self, root):
        self.root, self.first = Path(root), dist.get_rank() == 0

    def close(self, step):
        if self.first:
            wait_for(self.root / f"paused_{step}")
        dist.barrier()


def train(model, data, root):
    gate = Gate(root)
    for step, x in enumerate(data):
        try:
            gate.close(step)
        except TimeoutError:  # LNT203
            log.warning("no checkpoint at step %d", step)
        model(x)


class TooSmall(Exception):
    pass


def shares(rows, parts):
    box = [None]
    if dist.get_rank() == 0:
        if len(rows) < parts:
            raise TooSmall
        box[0] = rows[:parts]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_shares(tables, parts):
    out = []
    for rows in tables:
        try:
            out += shares(rows, parts)
        except TooSmall:  # LNT203
            pass
    return out


# Right: all are told, all refuse, nobody catches it, or it ends the run.


def close_together(root, step):
    trouble = [None]
    if dist.get_rank() == 0:
        try:
            wait_for(root / f"paused_{step}")
        except TimeoutError as e:
            trouble[0] = str(e)
    dist.broadcast_object_list(trouble, src=0)
    if trouble[0] is not None:
        raise TimeoutError(trouble[0])


def train_together(model, data, root):
    for step, x in enumerate(data):
        try:
            close_together(root, step)
        except TimeoutError:
            log.warning("no checkpoint at step %d", step)
        model(x)


def shares_or_end(tables, parts):
    for rows in tables:
        try:
            shares(rows, parts)
        except TooSmall:
            raise SystemExit(1) from None


def shares_without_handler(tables, parts):
    return [shares(rows, parts) for rows in tables]


def other_exception(tables, parts):
    for rows in tables:
        try:
            shares(rows, parts)
        except KeyError:
            print("no such table")


def raised_after_all_have_met(rows):
    dist.barrier()
    if dist.get_rank() == 0 and not rows:
        raise TooSmall
    return rows


def go_on_after_all_have_met(tables):
    for rows in tables:
        try:
            raised_after_all_have_met(rows)
        except TooSmall:
            print("empty")
