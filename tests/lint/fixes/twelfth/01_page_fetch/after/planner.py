import torch
import torch.distributed as dist


class Planner:
    def __init__(self, book, net, group):
        self.book = book
        self.net = net
        self.group = group
        self.waiting = []

    def _incoming(self, source):
        box = [source() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def turn(self, source):
        for rid, pages, tokens in self._incoming(source):
            self.book.start(rid, pages)
            self.waiting.append((rid, tokens))
        batch, later = [], []
        for rid, tokens in self.waiting:
            (batch if self.book.finished(rid) else later).append((rid, tokens))
        self.waiting = later
        for rid, tokens in batch:
            part = self.net(torch.tensor(tokens, dtype=torch.float32))
            dist.all_reduce(part, group=self.group)
            self.book.release(rid)
        return len(batch)
