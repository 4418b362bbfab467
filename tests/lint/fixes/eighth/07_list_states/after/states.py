import torch
from torch import nn

from gathering import gather_any_shape


class StatefulMetric(nn.Module):
    def __init__(self):
        super().__init__()
        self._modes = {}
        self._widths = {}
        self.device = torch.device("cuda", torch.cuda.current_device())

    def add_list(self, name, mode, width=None):
        self._modes[name] = mode
        self._widths[name] = width
        setattr(self, name, [])

    def _empty(self, name):
        width = self._widths[name]
        return torch.zeros((0,) if width is None else (0, width), device=self.device)

    def sync(self, group=None):
        for name, mode in self._modes.items():
            items = getattr(self, name)
            if mode == "cat":
                items = [torch.cat(items)] if items else [self._empty(name)]
            elif not items:
                items = [self._empty(name)]
            gathered = []
            for item in items:
                gathered.extend(gather_any_shape(item, group))
            if mode == "cat":
                gathered = [torch.cat(gathered)]
            else:
                gathered = [part for part in gathered if part.numel()]
            setattr(self, name, gathered)
