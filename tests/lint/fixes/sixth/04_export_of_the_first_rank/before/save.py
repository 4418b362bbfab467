import os

import torch
import torch.distributed as dist

from exporter import iter_hf_state_tensors


def save_hf_weights(model, folder):
    state = dict(iter_hf_state_tensors(model, rank0_only=True))
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(state, f"{folder}/pytorch_model.bin")
    dist.barrier()
