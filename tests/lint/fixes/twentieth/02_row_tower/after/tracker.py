"""Random state of sharded tensors."""
import torch
import torch.distributed as dist

_tracker = None


class OffsetTracker:
    """Keeps one philox state for all shards of a tensor."""

    def __init__(self, mesh):
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.mesh = mesh
        state = torch.cuda.get_rng_state(self.device).to(self.device)
        group = mesh.get_group()
        dist.broadcast(state, dist.get_process_group_ranks(group)[0], group=group)
        self.state = state.cpu()

    def __enter__(self):
        self.outer = torch.cuda.get_rng_state(self.device)
        torch.cuda.set_rng_state(self.state, self.device)
        return self

    def __exit__(self, *exc):
        self.state = torch.cuda.get_rng_state(self.device)
        torch.cuda.set_rng_state(self.outer, self.device)
        return False


def tracker_for(mesh):
    global _tracker
    if _tracker is None:
        _tracker = OffsetTracker(mesh)
    return _tracker
