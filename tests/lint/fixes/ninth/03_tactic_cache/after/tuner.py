import time

import torch
import torch.distributed as dist


def bucket(n):
    return 1 << max(n - 1, 0).bit_length()


class TacticTuner:
    def __init__(self, group):
        self.group = group
        self.cache = {}
        self.enabled = False

    def key(self, op, inputs):
        return (op.name,) + tuple(bucket(t.shape[0]) for t in inputs)

    def _time(self, op, inputs, tactic, rounds=5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            op.run(inputs, tactic)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / rounds

    def _share_best(self, timings):
        t = torch.tensor(timings, device="cuda")
        dist.all_reduce(t, op=dist.ReduceOp.MAX, group=self.group)
        return int(t.argmin())

    def _hit_everywhere(self, hit):
        if not self.enabled:
            return hit
        t = torch.tensor([int(hit)], device="cuda")
        dist.all_reduce(t, op=dist.ReduceOp.MIN, group=self.group)
        return bool(t.item())

    def pick(self, op, inputs):
        key = self.key(op, inputs)
        hit = self._hit_everywhere(key in self.cache)
        if hit:
            return self.cache[key]
        if not self.enabled:
            return 0
        timings = [self._time(op, inputs, t) for t in range(op.tactics)]
        best = self._share_best(timings)
        self.cache[key] = best
        return best
