import os

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from flat_adam import FlatAdam
from trajectories import TrajectoryFiles


def bucket_groups(model, limit=2 ** 25):
    big, small, group, size = [], [], [], 0
    for p in model.parameters():
        if p.numel() < 64:
            small.append([p])
            continue
        group.append(p)
        size += p.numel()
        if size >= limit:
            big.append(group)
            group, size = [], 0
    if group:
        big.append(group)
    return big + small


def policy_loss(model, batch):
    logp = model(batch["ids"]).logits[:, :-1].log_softmax(-1)
    logp = logp.gather(-1, batch["ids"][:, 1:, None]).squeeze(-1)
    ratio = (logp - batch["old_logp"]).exp()
    gain = torch.minimum(ratio * batch["adv"], ratio.clamp(0.8, 1.2) * batch["adv"])
    return -(gain * batch["mask"]).sum() / batch["mask"].sum()


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-1.7B", torch_dtype=torch.bfloat16).cuda()
    model.temperature = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16, device="cuda"))
    optimizer = FlatAdam(bucket_groups(model))
    files = TrajectoryFiles("rollouts", dist.get_rank(), dist.get_world_size())
    for step in range(500):
        batch = files.next_batch(device="cuda")
        loss = policy_loss(model, batch) * model.temperature.float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
