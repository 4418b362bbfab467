import torch.distributed as dist


class Stages:
    def __init__(self, count):
        world, rank = dist.get_world_size(), dist.get_rank()
        width = world // count
        self.count = count
        self.group = None
        self.index = rank // width
        for i in range(count):
            ranks = list(range(i * width, (i + 1) * width))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.group = group

    @property
    def is_last(self):
        return self.index == self.count - 1
