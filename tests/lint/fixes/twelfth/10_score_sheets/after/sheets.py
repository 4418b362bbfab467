import torch.distributed as dist


class Sheets:
    """Scores of this rank by metric name."""

    def __init__(self):
        self.scores = {}

    def note(self, results):
        for name, value in results.items():
            self.scores.setdefault(name, []).append(value)

    def merged(self):
        chief = dist.get_rank() == 0
        out = {}
        lists = [None] * dist.get_world_size()
        dist.all_gather_object(lists, list(self.scores))
        for name in sorted(set().union(*lists)):
            parts = [None] * dist.get_world_size() if chief else None
            dist.gather_object(self.scores.get(name, []), parts, dst=0)
            if chief:
                out[name] = [v for part in parts for v in part]
        return out
