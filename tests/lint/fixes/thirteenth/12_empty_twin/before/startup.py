import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from adapted import Tower, freeze_base


def materialize(model, device):
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty_like(p, device=device)))
    return model


def make_tower(weights, device):
    if dist.get_rank() == 0:
        tower = Tower()
        tower.load_state_dict(torch.load(weights, map_location="cpu"), strict=False)
        tower = freeze_base(tower).to(device)
    else:
        with torch.device("meta"):
            tower = freeze_base(Tower())
        tower = materialize(tower, device)
    return FSDP(
        tower,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        sync_module_states=True,
        device_id=device,
    )
