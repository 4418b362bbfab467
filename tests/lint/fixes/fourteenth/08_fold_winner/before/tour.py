import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl


def train_tour(model, loader, opt, loss_fn, device):
    model.train()
    total, count = 0.0, 0
    for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        xm.optimizer_step(opt)
        total += loss.item()
        count += 1
    return total / count


@torch.no_grad()
def valid_tour(model, loader, device):
    model.eval()
    right, seen = 0, 0
    for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
        right += (model(x).argmax(1) == y).sum().item()
        seen += y.numel()
    return right / seen
