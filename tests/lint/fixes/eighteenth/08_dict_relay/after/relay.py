from collections import namedtuple

import torch
import torch.distributed as dist

TensorInfo = namedtuple("TensorInfo", ["dtype", "shape"])


def split_dict(data):
    header, tensors = [], []
    for key, value in data.items():
        if torch.is_tensor(value):
            header.append((key, TensorInfo(value.dtype, value.shape)))
            tensors.append(value.cuda().contiguous())
        else:
            header.append((key, value))
    return header, tensors


def relay_dict(data, src, group):
    if dist.get_world_size(group) == 1:
        return data
    if dist.get_rank() == src:
        header, tensors = split_dict(data)
        dist.broadcast_object_list([header], src=src, group=group)
        for tensor in tensors:
            dist.broadcast(tensor, src=src, group=group)
        return data

    box = [None]
    dist.broadcast_object_list(box, src=src, group=group)
    received = {}
    for key, value in box[0]:
        if isinstance(value, TensorInfo):
            buffer = torch.empty(value.shape, dtype=value.dtype, device="cuda")
            dist.broadcast(buffer, src=src, group=group)
            received[key] = buffer
        else:
            received[key] = value
    return received
