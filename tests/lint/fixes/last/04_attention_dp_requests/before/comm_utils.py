import pickle

import numpy as np
import torch
import torch.distributed as dist


def broadcast_pyobj(data, rank, dist_group=None, src=0):
    """Broadcast a list of picklable objects from src to the rest of the group."""
    if rank == src:
        if len(data) == 0:
            tensor_size = torch.tensor([0], dtype=torch.long)
            dist.broadcast(tensor_size, src=src, group=dist_group)
        else:
            serialized = pickle.dumps(data)
            tensor_data = torch.ByteTensor(np.frombuffer(serialized, dtype=np.uint8).copy())
            tensor_size = torch.tensor([len(serialized)], dtype=torch.long)
            dist.broadcast(tensor_size, src=src, group=dist_group)
            dist.broadcast(tensor_data, src=src, group=dist_group)
        return data

    tensor_size = torch.tensor([0], dtype=torch.long)
    dist.broadcast(tensor_size, src=src, group=dist_group)
    size = tensor_size.item()
    if size == 0:
        return []
    tensor_data = torch.empty(size, dtype=torch.uint8)
    dist.broadcast(tensor_data, src=src, group=dist_group)
    return pickle.loads(bytes(tensor_data.numpy()))
