import torch

from grad import clip_grads, get_grad_norm


class TrainEngine:
    def __init__(self, model, optimizer, mesh, cfg):
        self.model = model
        self.optimizer = optimizer
        self.dp_group = mesh["dp"].get_group()
        self.tp_group = mesh["tp"].get_group()
        self.cfg = cfg

    def optimizer_step(self):
        params = [p for p in self.model.parameters() if p.requires_grad]
        grads = [p.grad for p in params if p.grad is not None]
        norm = get_grad_norm(grads, self.dp_group, self.tp_group)
        if torch.isfinite(torch.tensor(norm)):
            clip_grads(params, self.cfg.max_norm, norm)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm
