import torch

from moe_utils import save_to_aux_losses_tracker


class TopKRouter(torch.nn.Module):
    def __init__(self, config, layer_number):
        super().__init__()
        self.config = config
        self.layer_number = layer_number
        self.weight = torch.nn.Parameter(torch.empty(config.num_moe_experts, config.hidden_size))
        torch.nn.init.normal_(self.weight, std=0.02)

    def forward(self, hidden):
        logits = hidden @ self.weight.t()
        probs = logits.softmax(-1)
        top, indices = probs.topk(self.config.moe_router_topk, dim=-1)
        load = torch.zeros_like(probs).scatter(-1, indices, 1.0).mean(0)
        aux_loss = (load * probs.mean(0)).sum() * self.config.num_moe_experts

        num_layers = self.config.num_layers
        if self.config.mtp_num_layers is not None:
            num_layers += self.config.mtp_num_layers
        save_to_aux_losses_tracker(
            "load_balancing_loss", aux_loss, self.layer_number, num_layers, self.config.tp_cp_group
        )
        return top, indices, aux_loss
