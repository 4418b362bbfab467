import torch
import torch.distributed as dist


class Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        world = dist.get_world_size()
        out = rows.new_empty(world * rows.shape[0], rows.shape[1])
        dist.all_gather_into_tensor(out, rows.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(), grad.shape[1])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class Deal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        out = rows.new_empty(rows.shape[0] // dist.get_world_size(), rows.shape[1])
        dist.reduce_scatter_tensor(out, rows.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] * dist.get_world_size(), grad.shape[1])
        dist.all_gather_into_tensor(out, grad.contiguous())
        return out
