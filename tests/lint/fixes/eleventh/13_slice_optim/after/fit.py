import os

import torch
import torch.distributed as dist

from slice_optim import SliceSGD


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(1024, 1024, bias=False), torch.nn.ReLU(), torch.nn.Linear(1024, 5)
    ).to(device)
    opt = SliceSGD(net.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(500):
        x = torch.randn(64, 1024, device=device)
        loss = torch.nn.functional.cross_entropy(net(x), x[:, :5].argmax(-1))
        net.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
