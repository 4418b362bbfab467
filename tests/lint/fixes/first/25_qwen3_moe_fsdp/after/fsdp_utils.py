import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from qwen3_moe_block import Expert


def apply_fsdp(model, mesh, decoder_layer_cls):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kwargs = {"mesh": mesh, "mp_policy": policy}
    for module in model.modules():
        if isinstance(module, (Expert, decoder_layer_cls)):
            fully_shard(module, **kwargs)
    fully_shard(model, **kwargs)
    return model


def train_one_step(model, optimizer, micro_batches, scheduler):
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for batch in micro_batches:
        logits = model(batch["tokens"])
        logp = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        logp = logp.gather(-1, batch["tokens"][:, 1:, None]).squeeze(-1)
        loss = -(logp * batch["advantages"][:, None] * batch["loss_mask"][:, 1:]).sum()
        loss = loss / batch["loss_mask"].sum().clamp(min=1)
        loss.backward()
        total += loss.item()
    optimizer.step()
    scheduler.step()
    return total
