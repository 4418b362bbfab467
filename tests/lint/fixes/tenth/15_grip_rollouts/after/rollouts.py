import torch.distributed as dist

from arm_env import ArmEnv


def play(policy, env):
    obs = env.reset()
    while True:
        obs, success, over = env.step(policy.choose(obs).cpu())
        if over:
            return success


def evaluate(policy, episodes):
    rank, world = dist.get_rank(), dist.get_world_size()
    won = [play(policy, ArmEnv(seed)) for seed in range(rank, episodes, world)]
    everyone = [None] * world
    dist.all_gather_object(everyone, won)
    flat = [w for part in everyone for w in part]
    return sum(flat) / len(flat)
