import torch
import torch.distributed as dist


def _read(path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {k: v.cuda() for k, v in sorted(state.items())}


def weight_stream(files, group=None):
    group = group or dist.group.WORLD
    size = dist.get_world_size(group)
    for number, path in enumerate(sorted(files)):
        src = dist.get_global_rank(group, number % size)
        mine = _read(path) if dist.get_rank() == src else {}
        listing = [[(k, v.shape, v.dtype) for k, v in mine.items()]]
        dist.broadcast_object_list(listing, src=src, group=group)
        for name, shape, dtype in listing[0]:
            if dist.get_rank() == src:
                tensor = mine[name]
            else:
                tensor = torch.empty(shape, dtype=dtype, device="cuda")
            dist.broadcast(tensor, src=src, group=group)
            yield name, tensor


def load_into(model, stream):
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in stream:
            if name in own:
                own[name].copy_(tensor)
