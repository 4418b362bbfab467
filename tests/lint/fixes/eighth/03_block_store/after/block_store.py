import logging
import uuid

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


class BlockStore:
    def __init__(self, client, mover, group, instance):
        self.client = client
        self.mover = mover
        self.group = group
        self.instance = instance
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.root = dist.get_global_rank(group, 0)

    def put(self, keys, pages):
        trace = uuid.uuid4().hex
        try:
            return self._put(keys, pages, trace)
        except Exception as err:
            log.error("put failed trace=%s err=%r", trace, err)
            return [False] * len(keys)

    def _put(self, keys, pages, trace):
        box = [None]
        if self.rank == 0:
            try:
                box = [self.client.begin_write({"trace": trace, "instance": self.instance, "keys": keys})]
            except Exception as err:
                log.error("begin_write failed trace=%s err=%r", trace, err)
        if self.world > 1:
            dist.broadcast_object_list(box, src=self.root, group=self.group)
        session = box[0]
        if session is None:
            return [False] * len(keys)
        wanted = set(session["missing"])
        rows = [i for i, key in enumerate(keys) if key in wanted]
        if not rows:
            return [True] * len(keys)

        try:
            stored = self.mover.save(session["uris"], [pages[i] for i in rows])
        except Exception as err:
            log.error("save failed trace=%s err=%r", trace, err)
            stored = False

        if self.world > 1:
            flag = torch.tensor(int(stored))
            dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.group)
            stored = bool(flag.item())
        if self.rank == 0:
            self.client.end_write({"trace": trace, "session": session["id"], "ok": [stored] * len(rows)})
        return [stored if i in rows else True for i in range(len(keys))]
