import torch
import torch.distributed as dist


class BucketStore:
    def __init__(self, group, reduce_bucket_size):
        self.group = group
        self.reduce_bucket_size = reduce_bucket_size
        self.params, self.grads, self.num_elements = [], [], 0

    def add(self, param):
        self.params.append(param)
        self.grads.append(param.grad.flatten())
        self.num_elements += param.numel()

    def full(self, param):
        return self.num_elements + param.numel() > self.reduce_bucket_size

    def reduce(self):
        if self.num_elements == 0:
            return
        flat = torch.cat(self.grads)
        flat.div_(dist.get_world_size(self.group))
        dist.all_reduce(flat, group=self.group)
        for param, piece in zip(self.params, flat.split([p.numel() for p in self.params])):
            param.grad.copy_(piece.view_as(param))
        self.params, self.grads, self.num_elements = [], [], 0
