"""Rank 1 waits outside of all communication in its fourth step: `waits.py KIND`; with "seen" until `unhang run` has noticed."""

import asyncio
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import toy

KIND, IS_HEALTHY = sys.argv[1], sys.argv[2:] == ["seen"]
# A second longer than until it is seen, a minute at most.
SEEN = """for i in $(seq 300); do [ -e "$UNHANG_RUN_DIR/verdict.json" ] && break; sleep 0.2; done; sleep 1"""
LONG = ["sh", "-c", SEEN] if IS_HEALTHY else ["sleep", "600"]
ENOUGH = threading.Event()


def when_seen(act):
    """In the healthy job a thread ends the wait."""
    if IS_HEALTHY:
        threading.Thread(target=lambda: (subprocess.run(LONG, check=False), act()), daemon=True).start()


def fetch_batch(connection):
    return connection.recv(1)  # socket


def read_features(path):
    with open(path) as file:  # fifo
        return file.read()


def locked_cache(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # flock


def convert_files():
    subprocess.run(LONG, check=False)  # subprocess


def on_subprocess():
    convert_files()


def on_socket():
    here, there = socket.socketpair()
    when_seen(lambda: there.send(b"x"))
    fetch_batch(here)


def on_fifo():
    os.mkfifo("features")
    when_seen(lambda: open("features", "w").close())
    read_features("features")


def on_flock():
    with open("cache.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        subprocess.Popen(LONG, pass_fds=[file.fileno()])
    locked_cache("cache.lock")


def feed(batches, connection):
    batches.put(connection.recv(1))  # feeder


def on_queue():
    """The only thread that feeds the queue is dead."""
    batches = queue.Queue()
    batches.get()  # queue


def on_feeder():
    """The only thread that feeds the queue waits for its data."""
    here, there = socket.socketpair()
    batches = queue.Queue()
    threading.Thread(target=feed, args=(batches, here), name="feeder", daemon=True).start()
    when_seen(lambda: there.send(b"x"))
    batches.get()


def hold_metrics(rank, number):
    if rank == 1 and number == 3:
        when_seen(ENOUGH.set)
        ENOUGH.wait()  # executor


def sync_metrics(group, rank, number):
    hold_metrics(rank, number)
    dist.all_reduce(torch.ones(3), group=group)


def train_with_executor(rank):
    """The calls of a group are made by the thread of an executor, of which only that thread knows."""
    group, pool, weights = dist.new_group(), ThreadPoolExecutor(1), torch.zeros(4, 1)
    for number in range(6):
        result = pool.submit(sync_metrics, group, rank, number)
        toy.train_step(weights, toy.batch(rank))
        result.result()


def give(pool, connection, group, is_broken):
    if is_broken:
        pool.submit(connection.recv)  # library
    return pool.submit(dist.barrier, group)


def train_with_library(rank):
    """The calls of a group are made, and kept, by a thread in which there is no code of the user."""
    group, pool, weights = dist.new_group(), ThreadPoolExecutor(1), torch.zeros(4, 1)
    here, there = multiprocessing.Pipe()
    for number in range(6):
        is_broken = rank == 1 and number == 3
        if is_broken:
            when_seen(lambda: there.send(None))
        result = give(pool, here, group, is_broken)
        toy.train_step(weights, toy.batch(rank))
        result.result()


def metrics_loop(group, orders, rank):
    for number in range(6):
        if rank == 1 and number == 3:
            return  # an error that nobody sees
        orders.get()
        dist.all_reduce(torch.ones(3), group=group)
        orders.task_done()


def train_with_thread(rank):
    """The thread that makes the calls of a group dies on rank 1."""
    group, orders, weights = dist.new_group(), queue.Queue(), torch.zeros(4, 1)
    thread = threading.Thread(target=metrics_loop, args=(group, orders, rank), name="metrics", daemon=True)
    thread.start()
    for _ in range(6):
        orders.put(None)
        toy.train_step(weights, toy.batch(rank))
        orders.join()  # thread


async def rollout(rank, number):
    if rank == 1 and number == 3:
        enough, loop = asyncio.Event(), asyncio.get_running_loop()
        when_seen(lambda: loop.call_soon_threadsafe(enough.set))
        await enough.wait()  # asyncio


async def train_with_tasks(rank):
    weights = torch.zeros(4, 1)
    for number in range(6):
        await asyncio.gather(rollout(rank, number), asyncio.sleep(0))
        toy.train_step(weights, toy.batch(rank))


def save(signum, frame):
    subprocess.run(LONG, check=False)  # signal


def on_signal():
    signal.signal(signal.SIGUSR1, save)
    os.kill(os.getpid(), signal.SIGUSR1)


def on_nothing():
    """No stack can be taken: the job runs without ptrace, and the recorder's handlers are gone."""
    signal.signal(signal.SIGRTMIN + 5, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    subprocess.run(LONG, check=False)


def train(rank):
    weights = torch.zeros(4, 1)
    for number in range(6):
        if rank == 1 and number == 3:
            globals()[f"on_{KIND}"]()
        toy.train_step(weights, toy.batch(rank))


def main():
    rank = toy.begin()
    if KIND == "asyncio":
        asyncio.run(train_with_tasks(rank))
    else:
        own = {"executor": train_with_executor, "library": train_with_library, "thread": train_with_thread}
        own.get(KIND, train)(rank)
    toy.end()


main()
