import torch.distributed as dist


class Layout:
    def __init__(self, tp, pp):
        self.tp, self.pp = tp, pp
        self.tp_groups = []
        self.tp_group = None
        rank = dist.get_rank()
        for stage in range(pp):
            members = list(range(stage * tp, (stage + 1) * tp))
            group = dist.new_group(members, backend="nccl")
            self.tp_groups.append(members)
            if rank in members:
                self.tp_group = group
                self.stage = stage
        self.tp_rank = dist.get_rank(self.tp_group)

    def members(self):
        return dist.get_process_group_ranks(self.tp_group)
