import os

import torch
import torch.distributed as dist

from domain_net import DomainNet
from total_norm import clip, is_expert


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = DomainNet().to(device)
    optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for step in range(3000):
        x = torch.randn(16, 32, device=device)
        loss = torch.nn.functional.cross_entropy(net(x, x[:, 0] > 1.2), x[:, :4].argmax(-1))
        optim.zero_grad(set_to_none=True)
        loss.backward()
        for p in net.parameters():
            if not is_expert(p):
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        norm = clip(net.parameters(), 1.0, device)
        optim.step()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"{step}: loss {loss.item():.3f} norm {norm.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
