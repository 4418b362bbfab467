import torch
import torch.distributed as dist


def sync_actor_critic_data(args, rollout_data, group):
    log_probs_key = "rollout_log_probs" if args.use_rollout_logprobs else "log_probs"
    values, log_probs, ref_log_probs = map(rollout_data.get, ("values", log_probs_key, "ref_log_probs"))
    if not values and not log_probs:
        return

    handles = []
    if not values:
        values = [torch.empty_like(log_prob) for log_prob in log_probs]
    for value in values:
        handles.append(dist.broadcast(value, src=1, group=group, async_op=True))

    if args.kl_coef != 0 or args.use_kl_loss:
        if not log_probs:
            ref_log_probs = [torch.empty_like(value) for value in values]
            log_probs = [torch.empty_like(value) for value in values]
        for ref_log_prob, log_prob in zip(ref_log_probs, log_probs):
            handles.append(dist.broadcast(ref_log_prob, src=0, group=group, async_op=True))
            handles.append(dist.broadcast(log_prob, src=0, group=group, async_op=True))

    for handle in handles:
        handle.wait()

    merged = {"values": values, log_probs_key: log_probs, "ref_log_probs": ref_log_probs}
    rollout_data.update({k: v for k, v in merged.items() if v is not None})
