from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class StepPlan:
    tokens: list = field(default_factory=list)

    @property
    def total(self):
        return len(self.tokens)


NOTHING = []


class ModelRunner:
    def __init__(self, model, config, group):
        self.model = model
        self.launcher = config.launcher
        self.replicas = dist.get_world_size(group)
        self.group = group

    def _dummy_run(self, n):
        self.model(torch.zeros(n, dtype=torch.long, device="cuda"))

    @torch.inference_mode()
    def execute(self, plan):
        if plan.total == 0:
            if self.replicas > 1:
                self._dummy_run(1)
            return NOTHING
        ids = torch.tensor(plan.tokens, device="cuda")
        return self.model(ids).argmax(-1).tolist()
