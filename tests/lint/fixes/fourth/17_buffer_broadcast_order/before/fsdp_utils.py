import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def apply_fsdp2(model, mesh, wrap_classes, offload=False):
    kwargs = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": True,
    }
    if offload:
        kwargs["offload_policy"] = CPUOffloadPolicy()
    for module in model.modules():
        if type(module).__name__ in wrap_classes:
            fully_shard(module, **kwargs)
    fully_shard(model, **kwargs)
    return model


def fsdp2_load_full_state_dict(model, full_state, device, cpu_offload=None):
    if dist.get_rank() == 0:
        model = model.to(device=device, non_blocking=True)
    else:
        model = model.to_empty(device=device)
    cpu_offload = cpu_offload is not None
    options = StateDictOptions(full_state_dict=True, cpu_offload=cpu_offload, broadcast_from_rank0=True)
    set_model_state_dict(model, full_state, options=options)

    for name, buf in model.named_buffers():
        dist.broadcast(buf, src=0)

    if cpu_offload:
        model.to("cpu", non_blocking=True)
        for buf in model.buffers():
            buf.data = buf.data.to(device)


def build_model(factory, mesh, wrap_classes, state_path, device):
    if dist.get_rank() == 0:
        model = factory()
        full_state = torch.load(state_path, map_location="cpu")
    else:
        with torch.device("meta"):
            model = factory()
        full_state = {}
    apply_fsdp2(model, mesh, wrap_classes)
    fsdp2_load_full_state_dict(model, full_state, device)
    return model
