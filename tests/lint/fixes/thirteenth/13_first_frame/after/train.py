import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from clips import ClipStream
from depthnet import DepthNet


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(DepthNet()).to(device)
    net = DDP(net, device_ids=[local], find_unused_parameters=True)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    stream = ClipStream(seed=dist.get_rank(), device=device)
    belief = None
    for step in range(2000):
        image, depth, fresh = stream.next_frame()
        scores = net(image, None if fresh else belief)
        loss = F.cross_entropy(scores, depth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        belief = scores.detach().softmax(1)
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
