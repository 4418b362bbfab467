import os

import torch
import torch.distributed as dist

from layout import Layout
from rooms import Rooms


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rooms = Rooms()
    layout = Layout(rooms, rows=2, columns=4, head=5)
    total = layout.total(float(dist.get_rank()), device)
    if dist.get_rank() == 0:
        print(f"total {total}")
    rooms.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
