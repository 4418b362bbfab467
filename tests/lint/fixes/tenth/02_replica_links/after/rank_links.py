import torch.distributed as dist


class RankLinks:
    """Control messages between the ranks that serve one copy of the model."""

    def __init__(self, shard_group):
        self.shard_group = shard_group
        self.members = dist.get_process_group_ranks(shard_group)
        self.leader = self.members[0]
        self.is_leader = dist.get_rank() == self.leader
        partial = len(self.members) < dist.get_world_size()
        self.cpu_group = dist.new_group(
            ranks=self.members, backend="gloo", use_local_synchronization=partial
        )

    def share(self, payload):
        box = [payload if self.is_leader else None]
        dist.broadcast_object_list(box, src=self.leader, group=self.cpu_group)
        return box[0]

    def close(self):
        dist.destroy_process_group(self.cpu_group)
