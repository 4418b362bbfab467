import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel


def prepare_fsdp_module(model, device, auto_microbatching=False):
    hook_handles = []

    def sync_hook(*args):
        found_cuda_oom_tensor = torch.tensor([0], dtype=torch.uint8, device=device)
        dist.all_reduce(found_cuda_oom_tensor, op=dist.ReduceOp.MAX)
        all_ranks_finished_tensor = torch.tensor([0], dtype=torch.uint8, device=device)
        dist.all_reduce(all_ranks_finished_tensor, op=dist.ReduceOp.MIN)
        if found_cuda_oom_tensor.item() == 1:
            raise RuntimeError("CUDA out of memory encountered on a different rank")

    def auto_wrap_policy(module, recurse, nonwrapped_numel):
        if recurse:
            return True
        return bool(getattr(module, "_fsdp_wrap", False))

    for name, child in list(model.named_children()):
        fsdp_child = FullyShardedDataParallel(child, auto_wrap_policy=auto_wrap_policy, device_id=device)
        setattr(model, name, fsdp_child)
        if auto_microbatching:
            for module in fsdp_child.modules():
                if isinstance(module, FullyShardedDataParallel):
                    hook_handles.append(module.register_forward_pre_hook(sync_hook, prepend=True))
                    hook_handles.append(module.register_full_backward_pre_hook(sync_hook, prepend=True))
                else:
                    hook_handles.append(module.register_full_backward_hook(sync_hook))
    return hook_handles
