"""Asynchronous reinforcement learning on four ranks: three learners with sharded parameters and one generator actor.

    torchrun --standalone --nproc-per-node 4 train.py              trains in about ten seconds
    torchrun --standalone --nproc-per-node 4 train.py --broken     the incident: two threads interleave their commands
    torchrun --standalone --nproc-per-node 4 train.py --fault NAME another fault, see FAULTS

The learners (group `learners`) hold a third of each parameter, gather them for every micro-batch and add up gradients. The
generator writes sequences with the weights that it got last (group `weight_sync`: learner 0 and the generator). A learner
does what stands in its own queue, in that order. A controller, in threads of rank 0, writes the queues: its main loop the
training steps, its weight-sync thread the transfers. The job's store carries them, where a cluster has remote calls.
"""

import argparse
import math
import os
import pickle
import threading
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

FAULTS = {
    "none": "the healthy program",
    "interleaved": "commands of the two threads reach the learners in different orders (what --broken selects)",
    "stuck_generator": "the generator is busy and never comes to its receive",
    "uneven_packing": "packing rounds up: the last learner has one micro-batch less",
    "metric_thread": "a background thread reduces a metric over the group that trains",
}
LEARNERS, GENERATOR, ROLLOUTS, MICRO_BATCH, STEPS, FAULT_STEP = 3, 3, 50, 8, 16, 3
WORDS, LENGTH, WIDTH, RATE, WAIT = 12, 10, 24, 2.5, timedelta(seconds=120)
SHAPES = {"embedding": (WORDS, WIDTH), "hidden": (WIDTH, WIDTH), "head": (WIDTH, WORDS)}


class Queue:
    """A queue of commands in the job's store, with one reader and a connection of its own: who waits holds it."""

    def __init__(self, name: str) -> None:
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self.name, self.taken = name, 0

    def put(self, item: object) -> None:
        self.store.set(f"{self.name}/{self.store.add(self.name, 1)}", pickle.dumps(item))

    def get(self) -> Any:
        self.taken += 1
        self.store.wait([f"{self.name}/{self.taken}"], WAIT)
        return pickle.loads(self.store.get(f"{self.name}/{self.taken}"))


def logits(weights: dict[str, Tensor], words: Tensor) -> Tensor:
    """The policy: the next word from the last one."""
    return torch.tanh(F.embedding(words, weights["embedding"]) @ weights["hidden"]) @ weights["head"]


def generate(weights: dict[str, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Sequences, and their rewards: the share of words that count on from the word before."""
    words = torch.randint(WORDS, (count, 1))
    for _ in range(LENGTH - 1):
        words = torch.cat([words, torch.multinomial(logits(weights, words[:, -1]).softmax(-1), 1)], dim=1)
    return words, ((words[:, 1:] - words[:, :-1]) % WORDS == 1).float().mean(dim=1)


class Learner:
    """Does one command at a time. Every command is the same sequence of collectives on all learners."""

    def __init__(self, rank: int, group: Any, sync_group: Any, fault: str) -> None:
        self.rank, self.group, self.sync_group, self.fault = rank, group, sync_group, fault
        self.generator = Queue("generator")
        torch.manual_seed(0)
        self.shards = {name: self.pad(0.3 * torch.randn(shape))[rank].clone() for name, shape in SHAPES.items()}

    @staticmethod
    def pad(full: Tensor) -> tuple[Tensor, ...]:
        return F.pad(full.flatten(), (0, -full.numel() % LEARNERS)).chunk(LEARNERS)

    def gather(self, name: str) -> Tensor:
        """The whole parameter, from the shards of all learners."""
        parts = [torch.empty_like(self.shards[name]) for _ in range(LEARNERS)]
        dist.all_gather(parts, self.shards[name], group=self.group)
        return torch.cat(parts)[: math.prod(SHAPES[name])].view(SHAPES[name])

    def train(self, step: int, batches: list[tuple[Tensor, Tensor]]) -> None:
        if self.fault == "metric_thread" and step == FAULT_STEP:
            threading.Timer(0.2 * (self.rank > 0), self.reduce_metric).start()  # its turn comes at another moment
        for words, advantages in batches:  # <- uneven_packing
            weights = {name: self.gather(name).requires_grad_() for name in SHAPES}
            chosen = logits(weights, words[:, :-1]).log_softmax(-1).gather(-1, words[:, 1:, None]).squeeze(-1)
            (-(advantages[:, None] * chosen).mean()).backward()
            for name, weight in weights.items():
                gradient = torch.cat(self.pad(weight.grad))
                dist.all_reduce(gradient, group=self.group)
                self.shards[name] -= RATE * gradient.chunk(LEARNERS)[self.rank] / LEARNERS
        dist.all_reduce(torch.tensor([float(len(batches))]), group=self.group)  # <- uneven_packing

    def reduce_metric(self) -> None:
        dist.all_reduce(torch.ones(5), group=self.group)  # <- metric_thread

    def send_weights(self, step: int) -> None:
        """All learners gather each parameter; learner 0 sends it to the generator."""
        for name, shape in SHAPES.items():
            full = self.gather(name)
            if self.rank == 0:
                self.generator.put(("receive", step, name, shape))
                dist.broadcast(full, src=0, group=self.sync_group)

    def work(self, queue: Queue, results: Queue) -> None:
        while (command := queue.get())[0] != "exit":
            getattr(self, command[0])(*command[1:])  # <- here
            results.put((self.rank, command[0]))


def run_generator(queue: Queue, rollouts: Queue, sync_group: Any, fault: str) -> None:
    """The actor: generates, and receives weights, as the queue says."""
    torch.manual_seed(1)
    weights = {name: 0.3 * torch.randn(shape) for name, shape in SHAPES.items()}
    while (command := queue.get())[0] != "exit":
        if command[0] == "generate":
            rollouts.put(generate(weights, ROLLOUTS))
        else:
            _, step, name, shape = command
            if fault == "stuck_generator" and step == FAULT_STEP:
                time.sleep(600)  # <- stuck_generator
            weights[name] = torch.empty(shape)
            dist.broadcast(weights[name], src=0, group=sync_group)


def pack(words: Tensor, rewards: Tensor, rounds_up: bool) -> list[list[tuple[Tensor, Tensor]]]:
    """Gives every learner the same number of sequences, in micro-batches; a remainder is dropped."""
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-3)
    share = -(-len(words) // LEARNERS) if rounds_up else len(words) // LEARNERS
    parts = zip(words.split(share)[:LEARNERS], advantages.split(share), strict=False)
    return [list(zip(w.split(MICRO_BATCH), a.split(MICRO_BATCH), strict=True)) for w, a in parts]


class Controller(threading.Thread):
    """Two loops that write commands: training steps here, transfers of weights in a thread of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.queues, self.args = [Queue(f"learner{rank}") for rank in range(LEARNERS)], args
        self.generator, self.results, self.rollouts = Queue("generator"), Queue("results"), Queue("rollouts")
        self.step, self.due, self.lock = 0, threading.Event(), threading.Lock()

    def submit(self, command: str, arguments: list[tuple[Any, ...]]) -> None:
        """One command for all learners. With the lock it is one thing; without it another may get in between."""
        races = self.args.fault == "interleaved"
        with nullcontext() if races else self.lock:  # the fix: the lock
            for rank, queue in enumerate(self.queues):
                queue.put((command, *arguments[rank]))
                if races and self.step == FAULT_STEP and command == "send_weights":
                    time.sleep(0.5)  # a remote call that takes its time, so that the race is lost each time

    def sync_weights(self) -> None:
        while self.due.wait():
            self.due.clear()
            self.submit("send_weights", [(self.step,)] * LEARNERS)

    def run(self) -> None:
        threading.Thread(target=self.sync_weights, daemon=True).start()
        while self.step < STEPS:
            self.step += 1
            self.generator.put(("generate",))
            words, rewards = self.rollouts.get()
            print(f"step {self.step} loss {1 - rewards.mean():.3f} (1 - reward)", flush=True)
            self.due.set()  # and does not wait for the transfer
            data = pack(words, rewards, self.args.fault == "uneven_packing" and self.step == FAULT_STEP)
            time.sleep(0.1)  # longer batches take longer to pack
            self.submit("train", [(self.step, part) for part in data])
            for _ in range(2 * LEARNERS):  # the transfer and the training, on each learner
                self.results.get()
        for queue in [*self.queues, self.generator]:
            queue.put(("exit",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what shall go wrong")
    parser.add_argument("--broken", dest="fault", action="store_const", const="interleaved", help="the incident")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, learners = dist.get_rank(), dist.new_group(list(range(LEARNERS)), group_desc="learners")
    sync_group = dist.new_group([0, GENERATOR], group_desc="weight_sync")
    if rank == 0:
        Controller(args).start()
    if rank == GENERATOR:
        run_generator(Queue("generator"), Queue("rollouts"), sync_group, args.fault)
    else:
        Learner(rank, learners, sync_group, args.fault).work(Queue(f"learner{rank}"), Queue("results"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
