import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def newton_schulz(x, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        g = x @ x.mT
        x = a * x + (b * g + c * g @ g) @ x
    return x


def megabatch_orthogonalize(updates, process_group):
    world_size = dist.get_world_size(process_group)
    locals_ = [u.to_local() if isinstance(u, DTensor) else u for u in updates]
    rows = torch.tensor([locals_[0].shape[0]], device=locals_[0].device)
    all_rows = [torch.zeros_like(rows) for _ in range(world_size)]
    dist.all_gather(all_rows, rows, group=process_group)
    largest = int(max(r.item() for r in all_rows))
    own = locals_[0].shape[0]
    locals_ = [torch.nn.functional.pad(x, (0, 0, 0, largest - own)) for x in locals_]
    count = len(locals_)
    padded = (count + world_size - 1) // world_size * world_size
    locals_ += [torch.zeros_like(locals_[0])] * (padded - count)
    per_rank = padded // world_size

    input_chunks = [torch.stack(locals_[r * per_rank:(r + 1) * per_rank]) for r in range(world_size)]
    output_chunks = [torch.empty_like(input_chunks[0]) for _ in range(world_size)]
    dist.all_to_all(output_chunks, input_chunks, group=process_group)

    full = newton_schulz(torch.cat(output_chunks, dim=1))
    back = [chunk.contiguous() for chunk in full.split([c.shape[1] for c in output_chunks], dim=1)]
    result = [torch.empty_like(chunk) for chunk in input_chunks]
    dist.all_to_all(result, back, group=process_group)
    return [t[:own] for chunk in result for t in chunk.unbind(0)][:count]
