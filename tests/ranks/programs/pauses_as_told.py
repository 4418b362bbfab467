"""Rank 0 pauses as long as a server told it to, while rank 1 waits. At the end rank 1 waits for its own thread, while rank 0 computes."""

import sys
import threading
import time

import torch
import toy

SCALE = float(sys.argv[1])
PAUSE_S, UPLOAD_S, EXPORT_S = 5 * SCALE, 5 * SCALE, 6 * SCALE


def upload():
    for _ in range(int(10 * UPLOAD_S)):
        time.sleep(0.1)


def export():
    until = time.monotonic() + EXPORT_S
    while time.monotonic() < until:
        torch.linalg.qr(torch.randn(64, 64))


def main():
    rank = toy.begin()
    weights = toy.train(rank, steps=20)
    if rank == 0:
        time.sleep(PAUSE_S)
    toy.train_step(weights, toy.batch(rank))
    toy.end()
    if rank == 1:
        threading.Thread(target=upload).start()
    else:
        export()


main()
