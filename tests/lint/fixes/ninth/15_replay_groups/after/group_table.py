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
        own = {}
        for gid, members in mine.items():
            own.setdefault(tuple(self._full(members)), []).append(gid)
        table = set(own)
        for rank in range(self.world):
            if rank == self.rank:
                continue
            for members in self._peer(rank).values():
                table.add(tuple(self._full(members)))
        for members in sorted(table):
            if len(members) == self.world:
                group = dist.group.WORLD
            else:
                group = dist.new_group(list(members), backend=self.backend)
            for gid in own.get(members, []):
                self.groups[gid] = group
        return self.groups
