import torch.distributed as dist


def ready():
    return dist.is_available() and dist.is_initialized()


def on_main_then_share(fn, *args, **kwargs):
    if not ready():
        return fn(*args, **kwargs)
    box = [fn(*args, **kwargs)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(box, src=0)
    dist.barrier()
    return box[0]
