import torch
import torch.nn.functional as F

from moe_tracker import record_aux_loss


class TopKRouter(torch.nn.Module):
    def __init__(self, config, layer_number):
        super().__init__()
        self.config = config
        self.layer_number = layer_number
        self.weight = torch.nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        torch.nn.init.normal_(self.weight, std=0.02)

    def forward(self, hidden):
        logits = F.linear(hidden, self.weight)
        scores, indices = torch.topk(logits.softmax(-1), self.config.topk, dim=-1)
        load = F.one_hot(indices, self.config.num_experts).float().mean(dim=(0, 1))
        aux = (load * logits.softmax(-1).mean(0)).sum() * self.config.num_experts
        record_aux_loss("load_balancing_loss", aux, self.layer_number, self.config)
        return scores, indices, aux * self.config.aux_coeff
