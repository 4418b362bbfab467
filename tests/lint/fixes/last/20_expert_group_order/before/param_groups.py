import parallel_state


def get_param_groups(model_chunks, overrides, default_lr):
    groups = {}
    for chunk in model_chunks:
        for name, param in chunk.named_parameters():
            if not param.requires_grad:
                continue
            override = tuple(sorted((k, v) for k, v in overrides.items() if k in name))
            is_expert_parallel = not getattr(param, "allreduce", True)
            groups.setdefault((override, is_expert_parallel), []).append(param)

    param_groups = []
    for override, is_expert_parallel in sorted(groups, key=lambda key: key[0]):
        param_groups.append(
            {
                "params": groups[(override, is_expert_parallel)],
                "lr": dict(override).get("lr", default_lr),
                "is_expert_parallel": is_expert_parallel,
            }
        )
    return param_groups


def stats_group(param_group):
    if param_group["is_expert_parallel"]:
        return parallel_state.get_expert_tensor_model_pipeline_parallel_group()
    return parallel_state.get_model_parallel_group()
