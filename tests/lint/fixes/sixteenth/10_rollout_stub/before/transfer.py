import torch
from torch.distributed.tensor import DTensor


class WeightCourier:
    def __init__(self, accelerator, folder):
        self.accelerator = accelerator
        self.folder = folder
        self.version = 0

    def send(self, model):
        self.accelerator.wait_for_everyone()
        self.version += 1
        weights = {}
        for name, value in model.named_parameters():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            if self.accelerator.is_main_process:
                weights[name] = full.detach().cpu()
        if self.accelerator.is_main_process:
            torch.save(weights, f"{self.folder}/v{self.version}.pt")
        self.accelerator.wait_for_everyone()
        return self.version
