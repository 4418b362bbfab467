"""A healthy job: all work is done, and each rank still writes for some seconds while it exits, rank 0 the longest."""

import sys
import threading
import time

import toy


def write(seconds):
    time.sleep(seconds)


rank = toy.begin()
toy.train(rank, steps=5)
toy.end()
threading.Thread(target=write, args=(float(sys.argv[1]) / (1 + rank),)).start()
