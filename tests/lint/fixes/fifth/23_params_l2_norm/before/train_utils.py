import torch
import torch.distributed as dist
from megatron.core import parallel_state


def squared_norm(tensors):
    return torch.stack([t.float().norm() for t in tensors]).square().sum().reshape(1)


def calc_params_l2_norm(model_chunks):
    params, sharded_params, moe_params = [], [], []
    for chunk in model_chunks:
        for param in chunk.parameters():
            if not getattr(param, "is_unique_in_tp", True):
                continue
            if not getattr(param, "allreduce", True):
                moe_params.append(param.data)
            elif getattr(param, "main_param_sharded", False):
                if param.main_param is not None:
                    sharded_params.append(param.main_param)
            else:
                params.append(param.data)

    norm_2 = torch.zeros(1, device="cuda")
    if len(params) > 0:
        norm_2 += squared_norm(params)

    if len(sharded_params) > 0:
        sharded_norm_2 = squared_norm(sharded_params)
        dist.all_reduce(
            sharded_norm_2,
            op=dist.ReduceOp.SUM,
            group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )
        norm_2 += sharded_norm_2

    if len(moe_params) > 0:
        norm_2 += squared_norm(moe_params)

    dist.all_reduce(norm_2, op=dist.ReduceOp.SUM, group=parallel_state.get_model_parallel_group())
    return norm_2.item() ** 0.5
