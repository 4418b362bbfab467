import torch.distributed as dist


class RankComm:
    def __init__(self, group=None):
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def allgather(self, value):
        out = [None] * self.size
        dist.all_gather_object(out, value, group=self.group)
        return out

    def bcast(self, value):
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]
