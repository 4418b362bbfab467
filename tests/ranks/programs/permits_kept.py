"""A task of rank 2 returns without the lock's release; all its later ones wait for it in the event loop."""

import asyncio

import torch
import torch.distributed as dist


class Simulator:
    def __init__(self, rank: int) -> None:
        self.rank, self.steps, self.lock = rank, 0, asyncio.Lock()

    async def step(self) -> None:
        await self.lock.acquire()  # culprit
        self.steps += 1
        if (self.rank, self.steps) == (2, 17):
            return
        self.lock.release()

    async def episode(self) -> None:
        await asyncio.gather(*(self.step() for _ in range(4)))


def main() -> None:
    dist.init_process_group("gloo")
    loop, simulator = asyncio.new_event_loop(), Simulator(dist.get_rank())
    for _ in range(8):
        loop.run_until_complete(simulator.episode())
        dist.all_reduce(torch.ones(1))


main()
