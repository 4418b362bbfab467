import torch

from bucket_store import BucketStore


class LowLevelZeroOptimizer:
    def __init__(self, optim, pg_to_param_list, reduce_bucket_size=1024 * 1024, overlap_communication=False):
        self.optim = optim
        self._overlap_communication = overlap_communication
        self._working_param_groups = dict(enumerate(pg_to_param_list.values()))
        self._buckets = {
            i: BucketStore(group, reduce_bucket_size) for i, group in enumerate(pg_to_param_list)
        }

    def _add_to_bucket(self, param, group_id):
        bucket = self._buckets[group_id]
        if bucket.full(param):
            bucket.reduce()
        bucket.add(param)

    def _run_reduction(self):
        for bucket in self._buckets.values():
            bucket.reduce()

    def _sync_grad(self):
        for group_id, params in self._working_param_groups.items():
            for param in params:
                if param.requires_grad:
                    if param.grad is None:
                        param.grad = torch.zeros_like(param)
                    self._add_to_bucket(param, group_id)
        self._run_reduction()

    def backward(self, loss):
        loss.backward()
        if not self._overlap_communication:
            self._sync_grad()

    def step(self):
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)
