"""A healthy training of so many seconds, with steps that take a moment."""

import sys
import time

import toy

rank = toy.begin()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    toy.train(rank, steps=3)
    time.sleep(0.05)
toy.end()
