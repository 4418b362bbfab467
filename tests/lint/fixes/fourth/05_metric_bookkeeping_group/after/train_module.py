import torch
import torch.distributed as dist


class GRPOTrainModule:
    def __init__(self, model, optim, accumulation_steps, device):
        self.model, self.optim = model, optim
        self.accumulation_steps = accumulation_steps
        self.device = device
        self.trainer = None

    def record_metric(self, name, value, reduce_type="mean"):
        self.trainer.record_metric(name, value, reduce_type=reduce_type)

    def train_batch(self, batch, dry_run=False):
        losses, counts = [], []
        num_steps = len(batch["sequences"])
        local_step = 0
        for sequence in batch["sequences"]:
            local_step += 1
            loss = self.model(sequence.to(self.device)).mean()
            (loss / self.accumulation_steps).backward()
            losses.append(loss.detach())
            counts.append(sequence.numel())
            if local_step % self.accumulation_steps == 0:
                self.optim.step()
                self.optim.zero_grad(set_to_none=True)

        self.record_metric("_metrics_keepalive", float(self.trainer.global_step), reduce_type=None)

        if not dry_run and num_steps > 0:
            self.record_metric("loss", torch.stack(losses).mean().cpu())
            self.record_metric("tokens", float(sum(counts)), reduce_type="sum")
