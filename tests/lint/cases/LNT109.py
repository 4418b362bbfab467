"""A wrapped forward that takes a different path on some ranks."""

from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, x, rank):
    model = DDP(model)
    model(x, use_head=rank == 0)  # LNT109
    model(x, use_head=not (x is None and rank == 2))  # LNT109
    model(x, use_head=x is None)
    model(x + rank)
