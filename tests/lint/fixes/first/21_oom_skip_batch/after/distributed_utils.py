import pickle

import torch
import torch.distributed as dist


def all_gather_list(data, max_size=16384):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buffer = torch.cuda.ByteTensor(max_size * world_size).zero_()
    enc = pickle.dumps(data)
    if len(enc) + 2 > max_size:
        raise ValueError(f"encoded data exceeds max_size: {len(enc) + 2}")
    own = buffer[rank * max_size:(rank + 1) * max_size]
    own[0], own[1] = len(enc) // 255, len(enc) % 255
    own[2:len(enc) + 2] = torch.cuda.ByteTensor(list(enc))
    dist.all_reduce(buffer)
    result = []
    for i in range(world_size):
        out = buffer[i * max_size:(i + 1) * max_size]
        size = 255 * out[0].item() + out[1].item()
        result.append(pickle.loads(bytes(out[2:size + 2].tolist())))
    return result
