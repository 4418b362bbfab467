import torch
import torch.distributed as dist


def build(make, source, device):
    """Rank 0 reads the weights, the others only allocate them."""
    if dist.get_rank() == 0:
        net = make()
        net.load_state_dict(torch.load(source, map_location="cpu"))
        return net.to(device)
    with torch.device("meta"):
        net = make()
    return net.to_empty(device=device)


def share(net):
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    for b in net.buffers():
        dist.broadcast(b, src=0)
