import torch
import torch.distributed as dist
from megatron.core import parallel_state

_TRACKER = {}


def record_aux_loss(name, loss, layer_number, config, reduce_group=None):
    total_layers = config.num_layers
    if config.mtp_num_layers is not None:
        total_layers += config.mtp_num_layers
    if name not in _TRACKER:
        _TRACKER[name] = {"values": torch.zeros(total_layers, device=loss.device)}
    _TRACKER[name]["values"][layer_number - 1] += loss.detach()
    _TRACKER[name]["reduce_group"] = reduce_group


def reduce_tracker(names):
    pp_group = parallel_state.get_pipeline_model_parallel_group()
    dp_group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    for name in names:
        values = _TRACKER[name]["values"]
        dist.all_reduce(values, group=pp_group)
        if _TRACKER[name].get("reduce_group") is not None:
            dist.all_reduce(values, group=_TRACKER[name]["reduce_group"])
        dist.all_reduce(values, group=dp_group, op=dist.ReduceOp.AVG)


def log_moe_metrics(loss_scale, iteration, writer, names, config):
    tracker_layers = config.num_layers
    if config.mtp_num_layers is not None:
        tracker_layers += config.mtp_num_layers
    for name in names:
        if name not in _TRACKER:
            _TRACKER[name] = {
                "values": torch.zeros(tracker_layers, device="cuda"),
                "reduce_group": None,
            }
    reduce_tracker(names)
    num_moe_layers = sum(config.moe_layer_pattern)
    if config.mtp_num_layers is not None:
        num_moe_layers += config.mtp_num_layers
    if writer is not None:
        for name in names:
            total = _TRACKER[name]["values"].sum() * loss_scale / num_moe_layers
            writer.add_scalar(name, total.item(), iteration)
    for entry in _TRACKER.values():
        entry["values"].zero_()
