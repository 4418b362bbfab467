import json

import torch.distributed as dist


class GroupTable:
    def __init__(self, store, backend="nccl"):
        self.store = dist.PrefixStore("groups", store)
        self.backend = backend
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.groups = {}

    def _publish(self, mine):
        self.store.set(str(self.rank), json.dumps(mine))
        dist.barrier()

    def _peer(self, rank):
        listed = json.loads(self.store.get(str(rank)))
        return {int(gid): members for gid, members in listed.items()}

    def _full(self, members):
        return sorted(members) if members else list(range(self.world))

    def create(self, mine):
        self._publish(mine)
        table = {gid: self._full(members) for gid, members in mine.items()}
        for rank in range(self.world):
            if rank == self.rank:
                continue
            for gid, members in self._peer(rank).items():
                table.setdefault(gid, self._full(members))
        for gid in sorted(table):
            members = table[gid]
            if len(members) == self.world:
                self.groups[gid] = dist.group.WORLD
            else:
                group = dist.new_group(members, backend=self.backend)
                if gid in mine:
                    self.groups[gid] = group
        return self.groups
