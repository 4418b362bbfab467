import torch
import torch.distributed as dist


def sum_over_ranks(numbers, device):
    mine = torch.tensor(numbers, dtype=torch.float64, device=device)
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts).sum(0).tolist()


def forward_ops(model, batch):
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 6 * weights * batch.numel()
