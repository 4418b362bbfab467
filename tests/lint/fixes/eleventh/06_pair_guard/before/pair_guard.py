import torch
import torch.distributed as dist


class ForwardFailed(RuntimeError):
    pass


def together(call, device):
    """Runs call; if it fails anywhere, every rank raises."""
    error, value = None, None
    try:
        value = call()
    except ValueError as e:
        error = e
    failed = torch.tensor([float(error is not None)], device=device)
    dist.all_reduce(failed)
    if failed.item():
        if error is not None:
            raise error
        raise ForwardFailed("the forward failed on another rank, see its traceback")
    return value
