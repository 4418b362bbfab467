import torch
import torch.distributed as dist


class GradReducePipeline:
    def __init__(self, parameter_groups, group):
        self.parameter_groups = parameter_groups
        self.group = group
        self.param_to_bucket = {p: i for i, params in enumerate(parameter_groups) for p in params}
        self.ready = [set() for _ in parameter_groups]
        self.queue = []

    def reduce_gradients(self, params):
        for param in params:
            bucket_id = self.param_to_bucket[param]
            if not param.requires_grad:
                continue
            self.ready[bucket_id].add(param)
            if len(self.ready[bucket_id]) == len(self.parameter_groups[bucket_id]):
                self.wait_for_previous_grad_reduce()
                self._bucket_reduce(bucket_id)

    def _bucket_reduce(self, bucket_id):
        flat = torch.cat([p.grad.flatten() for p in self.parameter_groups[bucket_id]])
        shard = torch.empty(flat.numel() // dist.get_world_size(self.group), device=flat.device)
        work = dist.reduce_scatter_tensor(shard, flat, group=self.group, async_op=True)
        self.queue.append((work, bucket_id, shard))
        self.ready[bucket_id].clear()

    def wait_for_previous_grad_reduce(self, queue_size=1):
        while len(self.queue) > queue_size:
            work, _, _ = self.queue.pop(0)
            work.wait()
