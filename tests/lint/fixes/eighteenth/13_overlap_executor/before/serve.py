import os

import torch
import torch.distributed as dist

from executor import Executor
from expert_model import ExpertModel
from queue_server import Inbox
from rank_comm import RankComm


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    comm = RankComm()
    model = ExpertModel.load(os.environ["MODEL_DIR"], ep_size=comm.size, ep_rank=comm.rank).cuda()
    inbox = Inbox(port=8200) if comm.rank == 0 else Inbox(port=None)
    Executor(model, comm, inbox).loop()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
