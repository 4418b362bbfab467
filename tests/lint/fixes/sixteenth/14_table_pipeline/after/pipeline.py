from collections import deque

import torch
import torch.distributed as dist


class Prefetcher:
    def __init__(self, table, dense, opt, depth=2):
        self.table = table
        self.dense = dense
        self.opt = opt
        self.depth = depth
        self.ready = deque()
        self.ended = False
        self.host = dist.new_group(backend="gloo")

    def _pull(self, stream):
        if self.ended:
            return False
        batch = next(stream, None)
        more = torch.tensor(int(batch is not None))
        dist.all_reduce(more, op=dist.ReduceOp.MIN, group=self.host)
        if not more.item():
            self.ended = True
            return False
        self.ready.append((batch, self.table.route(batch["ids"])))
        return True

    def progress(self, stream):
        while len(self.ready) < self.depth and self._pull(stream):
            pass
        if not self.ready:
            raise StopIteration
        batch, routed = self.ready.popleft()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            self.dense(self.table(routed)).squeeze(-1), batch["clicked"]
        )
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
