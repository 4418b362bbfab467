from common import get_aux_loss_track_names, get_moe_metrics


class MegatronPolicyWorker:
    def __init__(self, model, optimizer, forward_backward):
        self.model, self.optimizer, self.forward_backward = model, optimizer, forward_backward

    def train(self, batches):
        metrics = {}
        total_num_microbatches = 0
        for batch in batches:
            losses, count = self.forward_backward(self.model, batch)
            total_num_microbatches += count
            self.optimizer.step()
            self.optimizer.zero_grad()
        config = self.model.config
        if config.num_moe_experts is not None and config.num_moe_experts > 1:
            metrics["moe_metrics"] = get_moe_metrics(
                1.0 / max(1, total_num_microbatches),
                num_layers=config.num_layers,
                track_names=get_aux_loss_track_names(config),
            )
        return metrics
