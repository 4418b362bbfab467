"""A receive for the word to stop is open during the whole run; what is waited for is another one, or a collective.

`circle`: rank 1 says what it has to say only after the scores, and rank 0 waits for it before it sends them.
"""

import sys
import time

import torch
import torch.distributed as dist
import toy


def learns(is_circle, pair):
    stop, batch = torch.empty(1), torch.empty(8)
    word = dist.irecv(stop, src=1, tag=9)  # for the whole run
    for _ in range(3):
        work = dist.irecv(batch, src=2, tag=2)
        work.wait()
        dist.all_reduce(torch.ones(4), group=pair, async_op=True).wait()
        if is_circle:
            word.wait()  # culprit
        dist.send(batch[:1], dst=1, tag=1)
    word.wait()


def main():
    rank = toy.begin()
    pair = dist.new_group([0, 2])
    if rank == 0:
        learns("circle" in sys.argv, pair)
    elif rank == 1:
        for _ in range(3):
            dist.recv(torch.empty(1), src=0, tag=1)  # culprit
        dist.send(torch.ones(1), dst=0, tag=9)
    else:
        for _ in range(3):
            time.sleep(4)
            dist.send(torch.ones(8), dst=0, tag=2)
            time.sleep(3)
            dist.all_reduce(torch.ones(4), group=pair)
    toy.end()


main()
