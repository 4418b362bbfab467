import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class MetricsTracker(dict):
    def __add__(self, other):
        ans = MetricsTracker(self)
        for k, v in other.items():
            ans[k] = ans.get(k, 0) + v
        return ans

    def reduce(self, device):
        keys = sorted(self.keys())
        s = torch.tensor([float(self[k]) for k in keys], device=device)
        dist.all_reduce(s, op=dist.ReduceOp.SUM)
        for k, v in zip(keys, s.cpu().tolist()):
            self[k] = v


def compute_loss(model, batch, is_training):
    device = next(model.parameters()).device
    with torch.set_grad_enabled(is_training):
        loss = model(batch["text_tokens"].to(device), batch["audio_features"].to(device))
    return loss, MetricsTracker(loss=loss.detach().item(), frames=batch["audio_features"].numel())


def compute_validation_loss(model, valid_dl, world_size, device):
    tot_loss = MetricsTracker(loss=0.0, frames=0)
    for batch in valid_dl:
        _, loss_info = compute_loss(model.module, batch, is_training=False)
        tot_loss = tot_loss + loss_info
    if world_size > 1:
        tot_loss.reduce(device)
    return tot_loss


def train_one_epoch(params, model, optimizer, train_dl, valid_dl, rank, world_size):
    model.train()
    device = torch.device("cuda", rank)
    iter_dl = iter(train_dl)
    while True:
        try:
            batch = next(iter_dl)
        except StopIteration:
            break
        params.batch_idx_train += 1
        loss, _ = compute_loss(model, batch, is_training=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return compute_validation_loss(model, valid_dl, world_size, device)


def run(rank, world_size, params, model, train_dl, valid_dl):
    model = DDP(model.to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.base_lr)
    for epoch in range(params.num_epochs):
        train_dl.sampler.set_epoch(epoch)
        train_one_epoch(params, model, optimizer, train_dl, valid_dl, rank, world_size)
