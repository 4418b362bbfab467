"""Two learners of Ray wait for a sampler, and that for a board: which forgets its number on a restart ("hang"), or only takes its time ("slow").

"full": the learners are through, and a further actor leaves no processor for the task that the driver waits for.
"""

import asyncio
import sys
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist

WORLD, ROUNDS = 2, 8


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Board:
    def __init__(self):
        self.version, self.fresh = 0, asyncio.Condition()

    async def publish(self):
        async with self.fresh:
            self.version += 1
            self.fresh.notify_all()

    async def newer_than(self, version):
        async with self.fresh:
            await self.fresh.wait_for(lambda: self.version > version)  # culprit
            return self.version


@ray.remote(num_cpus=0)
class Sampler:
    def __init__(self, board, slow):
        self.board, self.version, self.slow = board, 0, slow

    def rollout(self, number):
        if self.slow and number == ROUNDS // 2:
            time.sleep(self.slow)
        self.version = ray.get(self.board.newer_than.remote(self.version))
        return [1.0] * 8


@ray.remote(num_cpus=2)
class Looks:
    def once(self):
        return True


@ray.remote(num_cpus=1)
def score():
    return 1.0


@ray.remote(num_cpus=0)
class Learner:
    def __init__(self, rank, store, board, sampler, fault):
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
        self.rank, self.board, self.sampler, self.fault = rank, board, sampler, fault

    def fit(self):
        for number in range(ROUNDS):
            if self.rank == 0:
                ray.get(self.board.publish.remote())
            loss = torch.tensor(ray.get(self.sampler.rollout.remote(number)))
            dist.all_reduce(loss)
            if self.fault == "hang" and number == ROUNDS // 2 and self.rank == 0:
                ray.kill(self.board, no_restart=False)
            dist.barrier()
        return self.rank


def main():
    fault, folder, slow = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=str(folder / "r"), _node_ip_address="127.0.0.1")
    board = Board.remote()
    samplers = [Sampler.remote(board, slow) for _ in range(WORLD)]
    learners = [Learner.remote(r, folder / "store", board, samplers[r], fault) for r in range(WORLD)]
    print(ray.get([x.fit.remote() for x in learners]), flush=True)
    if fault == "full":
        looks = Looks.remote()
        print(ray.get(looks.once.remote()), flush=True)
        print(ray.get(score.remote()), flush=True)  # culprit
    ray.shutdown()


if __name__ == "__main__":
    main()
