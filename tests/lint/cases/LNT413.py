"""Re-entrant checkpointing where DDP looks for unused parameters."""

from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def wrap(model):
    return DDP(model, find_unused_parameters=True)


def forward(layer, x):
    x = checkpoint(layer, x)  # LNT413
    return checkpoint(layer, x, use_reentrant=False)
