import os
import sys

import torch
import torch.distributed as dist

from runner import Runner
from stages import Stages


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    runner = Runner(Stages(int(sys.argv[2])), sys.argv[1])
    runner.load_model()
    runner.warm_up()
    dist.barrier()
    print(f"rank {dist.get_rank()} ready")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
