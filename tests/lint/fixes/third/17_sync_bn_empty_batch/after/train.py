import torch
import torch.distributed as dist
from torch.autograd.function import Function
from torch.nn import BatchNorm2d


class AllReduce(Function):
    @staticmethod
    def forward(ctx, tensor):
        parts = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor, async_op=False)
        return torch.stack(parts, dim=0).sum(dim=0)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad, async_op=False)
        return grad


class NaiveSyncBatchNorm(BatchNorm2d):
    def forward(self, x):
        if dist.get_world_size() == 1 or not self.training:
            return super().forward(x)
        B, C = x.shape[0], x.shape[1]
        mean = x.mean(dim=[0, 2, 3])
        meansqr = (x * x).mean(dim=[0, 2, 3])
        if B == 0:
            vec = torch.zeros([2 * C + 1], device=mean.device, dtype=mean.dtype)
            vec = vec + x.sum()
        else:
            one = torch.ones([1], device=mean.device, dtype=mean.dtype)
            vec = torch.cat([mean, meansqr, one], dim=0)
        vec = AllReduce.apply(vec * B)

        total = vec[-1].detach()
        momentum = total.clamp(max=1) * self.momentum
        total = torch.max(total, torch.ones_like(total))
        mean, meansqr, _ = torch.split(vec / total, C)
        var = meansqr - mean * mean
        scale = self.weight * torch.rsqrt(var + self.eps)
        bias = self.bias - mean * scale
        self.running_mean += momentum * (mean.detach() - self.running_mean)
        self.running_var += momentum * (var.detach() - self.running_var)
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
