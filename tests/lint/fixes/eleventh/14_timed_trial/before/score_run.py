import os

import torch
import torch.distributed as dist

from trial import Trial
from trial_clock import TrialClock
from workload import Workload


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    trial = Trial(Workload(device), TrialClock(eval_period=60.0, budget=3600.0), goal=0.97)
    reached = trial.run(max_steps=1_000_000)
    if dist.get_rank() == 0:
        print("done" if reached else "out of steps", trial.scores[-3:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
