import torch
import torch.distributed as dist

from saliency import ExpertSaliency


class ExpertPruner:
    def __init__(self, keep, device):
        self.keep = keep
        self.device = device
        self.trackers = {}

    def attach(self, model):
        for name, layer in model.named_modules():
            if hasattr(layer, "experts"):
                tracker = ExpertSaliency(len(layer.experts), self.device)
                self.trackers[name] = tracker
                layer.observer = tracker.note

    def finish(self, model):
        rank, world = dist.get_rank(), dist.get_world_size()
        ready = [
            (name, self.trackers[name])
            for name in sorted(self.trackers)
            if self.trackers[name].seen() > 0
        ]
        for index, (name, tracker) in enumerate(ready):
            owner = index % world
            dist.reduce(tracker.total, dst=owner)
            dist.reduce(tracker.tokens, dst=owner)
            chosen = torch.empty(self.keep, dtype=torch.long, device=self.device)
            if rank == owner:
                chosen.copy_(tracker.mean().topk(self.keep).indices.sort().values)
            dist.broadcast(chosen, src=owner)
            model.get_submodule(name).restrict(chosen.tolist())
