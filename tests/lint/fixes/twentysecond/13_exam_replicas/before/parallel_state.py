import torch.distributed as dist


class ParallelState:
    """Dense layers are replicated on all ranks; experts are spread over blocks of `ep_size`."""

    def __init__(self, ep_size: int):
        world, rank = dist.get_world_size(), dist.get_rank()
        self.ep_size = ep_size
        self.dp_group = dist.new_group(list(range(world)))
        for first in range(0, world, ep_size):
            block = list(range(first, first + ep_size))
            group = dist.new_group(block)
            if rank in block:
                self.ep_group = group
        for offset in range(ep_size):
            column = list(range(offset, world, ep_size))
            group = dist.new_group(column)
            if rank in column:
                self.expert_dp_group = group

    def data_parallel(self):
        return dist.get_rank(self.dp_group), dist.get_world_size(self.dp_group), self.dp_group

    def expert_data_parallel(self):
        return dist.get_rank(self.expert_dp_group), dist.get_world_size(self.expert_dp_group), self.expert_dp_group
