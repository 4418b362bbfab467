import torch.distributed as dist


def split_across_processes(accelerator, values):
    if accelerator.num_processes <= 1:
        return list(values)
    with accelerator.split_between_processes(list(values)) as shard:
        return list(shard)


def gather_across_processes(obj):
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return [obj]
    gathered = [None for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, obj)
    return [item for item in gathered if item is not None]
