import json

import torch.distributed as dist


def run_jobs(jobs, rank, world_size, simulate, folder):
    done = []
    for job in jobs[rank::world_size]:
        done.append(simulate(job))
        with open(f"{folder}/shard_{rank}.json", "w") as file:
            json.dump(done, file)
    dist.barrier()
    if rank == 0:
        return merge(folder, world_size)
    return None


def merge(folder, world_size):
    results = []
    for rank in range(world_size):
        with open(f"{folder}/shard_{rank}.json") as file:
            results += json.load(file)
    return results
