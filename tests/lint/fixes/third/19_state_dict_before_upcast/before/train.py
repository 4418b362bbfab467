import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor


def load_full_state_dict(accelerator, model, full_sd):
    sharded = model.state_dict()
    out = {}
    if accelerator.is_main_process:
        for (name, full), shard in zip(full_sd.items(), sharded.values()):
            full = full.detach().to(accelerator.device)
            dist.broadcast(full, src=0)
            out[name] = distribute_tensor(full, shard.device_mesh, shard.placements)
    else:
        for name, shard in sharded.items():
            full = torch.empty(shard.size(), device=accelerator.device, dtype=shard.dtype)
            dist.broadcast(full, src=0)
            out[name] = distribute_tensor(full, shard.device_mesh, shard.placements)
    model.load_state_dict(out, assign=True)


def prepare_model(accelerator, model, plugin):
    plugin.set_auto_wrap_policy(model)
    original_sd = model.state_dict()
    kwargs = {"reshard_after_forward": plugin.reshard_after_forward, "mesh": accelerator.mesh}

    if accelerator.mixed_precision != "no":
        for _, param in model.named_parameters():
            if param.requires_grad and param.dtype != torch.float32:
                param.data = param.data.to(torch.float32)

    if plugin.cpu_ram_efficient_loading:
        model = model.to("meta")
    for module in plugin.modules_to_wrap(model):
        fully_shard(module, **kwargs)
    fully_shard(model, **kwargs)
    if plugin.cpu_ram_efficient_loading:
        load_full_state_dict(accelerator, model, original_sd)
    return model
