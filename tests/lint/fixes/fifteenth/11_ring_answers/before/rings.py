import torch.distributed as dist


class Rings:
    def __init__(self, size):
        self.size = size
        self.rank = dist.get_rank() % size
        self.count = dist.get_world_size() // size
        self.group, self.members = None, None
        for index in range(self.count):
            members = list(range(index * size, (index + 1) * size))
            group = dist.new_group(members)
            if dist.get_rank() in members:
                self.group, self.members = group, members

    @property
    def leads(self):
        return self.rank == 0

    @property
    def lead(self):
        return self.members[0]
