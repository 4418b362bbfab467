import torch.distributed as dist

_TENSOR_GROUP = None
_PIPELINE_GROUP = None
_TP = 1


def initialize_model_parallel(tensor_size, pipeline_size):
    global _TENSOR_GROUP, _PIPELINE_GROUP, _TP
    _TP = tensor_size
    rank, world = dist.get_rank(), dist.get_world_size()
    for start in range(0, world, tensor_size):
        ranks = list(range(start, start + tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TENSOR_GROUP = group
    for start in range(world // pipeline_size):
        ranks = list(range(start, world, world // pipeline_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _PIPELINE_GROUP = group


def get_tensor_model_parallel_group():
    return _TENSOR_GROUP


def get_tensor_model_parallel_rank():
    return dist.get_rank(_TENSOR_GROUP)


def get_tensor_model_parallel_src_rank():
    return (dist.get_rank() // _TP) * _TP


def is_pipeline_first_stage():
    return dist.get_rank(_PIPELINE_GROUP) == 0
