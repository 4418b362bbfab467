import torch
import torch.distributed as dist

_TRACKER = {}


def get_moe_layer_wise_logging_tracker():
    return _TRACKER


def save_to_aux_losses_tracker(name, loss, layer_number, num_layers, reduce_group=None):
    if layer_number is None:
        return
    tracker = get_moe_layer_wise_logging_tracker()
    if name not in tracker:
        tracker[name] = {"values": torch.zeros(num_layers, device=loss.device)}
    tracker[name]["values"][layer_number - 1] += loss.detach()
    tracker[name]["reduce_group"] = reduce_group


def reduce_aux_losses_tracker_across_ranks(track_names, pp_group):
    tracker = get_moe_layer_wise_logging_tracker()
    for name in track_names:
        values = tracker[name]["values"]
        dist.all_reduce(values, group=pp_group)
        if tracker[name].get("reduce_group") is not None:
            dist.all_reduce(values, group=tracker[name]["reduce_group"])


def track_moe_metrics(loss_scale, iteration, writer, pp_group, num_layers, mtp_num_layers=None,
                      force_initialize=False, track_names=None):
    tracker = get_moe_layer_wise_logging_tracker()
    if force_initialize and track_names is not None:
        for key in track_names:
            if key not in tracker:
                tracker[key] = {"values": torch.zeros(num_layers, device="cuda"), "reduce_group": None}
    reduce_aux_losses_tracker_across_ranks(track_names, pp_group)

    num_moe_layers = num_layers + (mtp_num_layers or 0)
    for name in track_names:
        loss_list = tracker[name]["values"].float() * loss_scale
        if writer is not None:
            writer.add_scalar(name, loss_list.sum() / num_moe_layers, iteration)
        tracker[name]["values"].zero_()
