from moe_tracker import (
    clear_aux_losses_tracker,
    ensure_initialized,
    get_tracker,
    reduce_aux_losses_tracker_across_ranks,
)

TRACK_NAMES = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss"}


def get_aux_loss_track_names(model_config):
    names = []
    name = TRACK_NAMES.get(model_config.moe_router_load_balancing_type)
    if name is not None and model_config.moe_aux_loss_coeff > 0:
        names.append(name)
    if model_config.moe_z_loss_coeff is not None:
        names.append("z_loss")
    return names


def get_moe_metrics(loss_scale, num_layers=None, track_names=None):
    reduce_aux_losses_tracker_across_ranks()
    metrics = {}
    for name, entry in get_tracker().items():
        values = entry["values"].float() * loss_scale
        metrics[name] = (values.sum() / max(1, values.numel())).item()
    clear_aux_losses_tracker()
    return metrics
