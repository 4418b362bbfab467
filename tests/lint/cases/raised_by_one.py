"""What one rank alone refuses, before all meet, and somebody around both takes for an answer."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
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


class Slots:
    """Each rank writes in the background; a task that fails does so on its rank alone."""

    def __init__(self, folder: Path):
        self.folder, self.pool, self.pending = folder, ThreadPoolExecutor(2), {}

    def save(self, slot, state):
        self.drain(slot)
        self.pending[slot] = self.pool.submit(torch.save, state, self.folder / f"{slot}_{dist.get_rank()}")

    def drain(self, slot):
        future = self.pending.pop(slot, None)
        if future is None:
            return
        future.result()
        dist.barrier()

    def save_together(self, slot, state):
        future = self.pending.pop(slot, None)
        if future is not None:
            failed = [None] * dist.get_world_size()
            dist.all_gather_object(failed, future.exception() is not None)
            if any(failed):
                raise OSError("a write has failed")
        self.pending[slot] = self.pool.submit(torch.save, state, self.folder / f"{slot}_{dist.get_rank()}")


def save_and_go_on(slots: Slots, state):
    try:
        slots.save("model", state)
    except OSError as error:  # LNT203
        log.warning("not saved: %s", error)


def save_or_end(slots: Slots, state):
    try:
        slots.save("model", state)
    except OSError:
        log.exception("not saved")
        raise


def save_together_and_go_on(slots: Slots, state):
    try:
        slots.save_together("model", state)
    except OSError as error:
        log.warning("not saved: %s", error)


def written_alone(slots: Slots, state):
    try:
        slots.pending["model"].result()
    except OSError as error:
        log.warning("not saved: %s", error)


class Desk:
    """What rank 0 was asked all refuse alike."""

    def __init__(self, model):
        self.model = model

    def asked(self):
        box = [None]
        if dist.get_rank() == 0:
            box[0] = input()
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def step(self, rows):
        if len(rows) < dist.get_world_size():
            raise ValueError("too few rows")
        total = torch.tensor(self.model(rows))
        dist.all_reduce(total)
        return total

    def serve(self):
        while (rows := self.asked()) is not None:
            try:
                print(self.step(rows))
            except ValueError as error:
                print(error)

    def serve_own(self, batches):
        for rows in batches:
            try:
                print(self.step(rows))
            except ValueError as error:  # LNT203
                print(error)
