import torch
from megatron.core import mpu

TRACKER = {}


def save_loss_to_tracker(loss, layer_number, num_layers):
    if "values" not in TRACKER:
        TRACKER["values"] = torch.zeros(num_layers, device=loss.device)
    TRACKER["values"][layer_number] += loss.detach()
    TRACKER["avg_group"] = mpu.get_data_parallel_group(with_context_parallel=True)


def reduce_loss_in_tracker():
    if "values" not in TRACKER:
        return
    torch.distributed.all_reduce(TRACKER["values"], group=TRACKER["avg_group"], op=torch.distributed.ReduceOp.AVG)


def get_megatron_mtp_loss(n_micro_batch):
    reduce_loss_in_tracker()
    metrics = {f"mtp_{i + 1}_loss": v.item() / n_micro_batch for i, v in enumerate(TRACKER.get("values", []))}
    TRACKER.clear()
    return metrics
