import torch.distributed as dist


class Grid:
    def __init__(self, stages):
        world = dist.get_world_size()
        rank = dist.get_rank()
        self.replicas = world // stages
        self.stage = rank // self.replicas
        for s in range(stages):
            members = list(range(s * self.replicas, (s + 1) * self.replicas))
            group = dist.new_group(members)
            if rank in members:
                self.replica_group = group
        for r in range(self.replicas):
            members = list(range(r, world, self.replicas))
            group = dist.new_group(members)
            if rank in members:
                self.stage_group = group
        self.first = self.stage == 0
        self.last = self.stage == stages - 1
