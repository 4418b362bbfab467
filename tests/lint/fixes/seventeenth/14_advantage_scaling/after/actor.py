from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import mpu
from megatron.core.pipeline_parallel import get_forward_backward_func

from returns import compute_advantages


@dataclass
class ActorConfig:
    kl_coef: float = 0.02
    gamma: float = 1.0
    clip: float = 0.2
    normalize_advantages: bool = True
    micro_batch: int = 1
    seq_length: int = 4096


def policy_loss(cfg, batch, log_probs):
    ratio = (log_probs - batch["old_log_probs"]).exp()
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    gain = torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"])
    loss = -(gain * batch["loss_mask"]).sum() / batch["loss_mask"].sum().clamp_min(1)
    return loss, {"policy_loss": loss.detach()}


class Actor:
    def __init__(self, cfg, model, optimizer, log_prob_step, train_step):
        self.cfg = cfg
        self.model = model
        self.optimizer = optimizer
        self.log_prob_step = log_prob_step
        self.train_step = train_step

    def _schedule(self, step, iterator, count, forward_only):
        run = get_forward_backward_func()
        return run(
            forward_step_func=step,
            data_iterator=iterator,
            model=self.model,
            num_microbatches=count,
            seq_length=self.cfg.seq_length,
            micro_batch_size=self.cfg.micro_batch,
            forward_only=forward_only,
        )

    def update(self, rollout, make_iterator):
        iterator, count = make_iterator(rollout)
        with torch.no_grad():
            rows = self._schedule(self.log_prob_step, iterator, count, forward_only=True)
        if mpu.is_pipeline_last_stage():
            rollout["log_probs"] = [r["log_probs"] for r in rows]
        compute_advantages(self.cfg, rollout)

        iterator, count = make_iterator(rollout)
        self.optimizer.zero_grad()
        losses = self._schedule(self.train_step, iterator, count, forward_only=False)
        ok, grad_norm, _ = self.optimizer.step()
        if mpu.is_pipeline_last_stage():
            mean = torch.stack([l["policy_loss"] for l in losses]).mean()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mpu.get_data_parallel_group())
            if mpu.get_data_parallel_rank() == 0 and mpu.get_tensor_model_parallel_rank() == 0:
                print(f"policy loss {mean.item():.4f} grad norm {grad_norm:.3f} applied {ok}")
