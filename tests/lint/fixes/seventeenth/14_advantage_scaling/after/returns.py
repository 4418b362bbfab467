import torch
import torch.distributed as dist
from megatron.core import mpu


def masked_whiten_distributed(values, mask, process_group=None, epsilon=1e-8):
    """Shifts and scales values to zero mean and unit variance over every sample of the step."""
    stats = torch.stack([(values * mask).sum(), (values.square() * mask).sum(), mask.sum()]).float()
    dist.all_reduce(stats, op=dist.ReduceOp.SUM, group=process_group)
    total, square, count = stats.unbind()
    mean = total / count
    variance = (square / count - mean.square()).clamp_min(0)
    return (values - mean) * torch.rsqrt(variance + epsilon)


def token_kl(log_probs, ref_log_probs):
    return [(a - b).float() for a, b in zip(log_probs, ref_log_probs)]


def discounted(rewards, kl, coef, gamma):
    out = []
    for reward, penalty in zip(rewards, kl):
        steps = -coef * penalty
        steps[-1] = steps[-1] + reward
        total, column = torch.zeros((), device=steps.device), []
        for value in reversed(steps.unbind()):
            total = value + gamma * total
            column.append(total)
        out.append(torch.stack(column[::-1]))
    return out


def compute_advantages(cfg, rollout):
    if not mpu.is_pipeline_last_stage():
        return
    kl = token_kl(rollout["log_probs"], rollout["ref_log_probs"])
    returns = discounted(rollout["rewards"], kl, cfg.kl_coef, cfg.gamma)
    if cfg.normalize_advantages:
        flat = torch.cat(returns)
        mask = torch.cat(rollout["loss_masks"])
        flat = masked_whiten_distributed(flat, mask, process_group=mpu.get_data_parallel_group())
        returns = list(flat.split([len(r) for r in returns]))
    rollout["advantages"] = returns
    rollout["kl"] = kl
