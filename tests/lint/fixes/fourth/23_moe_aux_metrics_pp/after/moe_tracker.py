import torch
import torch.distributed as dist
from megatron.core import parallel_state

_TRACKER = {}


def get_tracker():
    return _TRACKER


def ensure_initialized(name, num_layers):
    if name not in _TRACKER:
        _TRACKER[name] = {"values": torch.zeros(num_layers, device="cuda"), "reduce_group": None}


def record(name, loss, layer_number, num_layers, reduce_group=None):
    ensure_initialized(name, num_layers)
    _TRACKER[name]["values"][layer_number - 1] += loss.detach()
    _TRACKER[name]["reduce_group"] = reduce_group


def reduce_aux_losses_tracker_across_ranks():
    for name in _TRACKER:
        values = _TRACKER[name]["values"]
        dist.all_reduce(values, group=parallel_state.get_pipeline_model_parallel_group())
        if _TRACKER[name].get("reduce_group") is not None:
            dist.all_reduce(values, group=_TRACKER[name]["reduce_group"])


def clear_aux_losses_tracker():
    for entry in _TRACKER.values():
        entry["values"].zero_()
