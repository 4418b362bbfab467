import torch.distributed as dist


class StageLink:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def pull(self):
        count = [None]
        dist.recv_object_list(count, src=self.rank - 1)
        items = [None] * count[0]
        if items:
            dist.recv_object_list(items, src=self.rank - 1)
        return items

    def push(self, items):
        dist.send_object_list([len(items)], dst=self.rank + 1)
        if items:
            dist.send_object_list(list(items), dst=self.rank + 1)
