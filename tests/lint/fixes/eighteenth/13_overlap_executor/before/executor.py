import time
from dataclasses import dataclass, field


@dataclass
class Request:
    id: int
    tokens: list
    limit: int
    produced: list = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    transfer_done: bool = True

    @property
    def finished(self):
        return len(self.produced) >= self.limit


class Executor:
    """Each rank serves its own requests; the experts are shared by all ranks."""

    def __init__(self, model, comm, inbox, max_batch=8, transfer_timeout=30.0):
        self.model, self.comm, self.inbox = model, comm, inbox
        self.max_batch = max_batch
        self.transfer_timeout = transfer_timeout
        self.active = []
        self.previous = None
        self.shutdown = False

    def _fetch(self):
        fresh = self.comm.bcast(self.inbox.drain() if self.comm.rank == 0 else None)
        for k, item in enumerate(fresh):
            if item is None:
                self.shutdown = True
            elif k % self.comm.size == self.comm.rank:
                self.active.append(item)

    def _schedule(self):
        ready = [r for r in self.active if r.transfer_done and not r.finished]
        return ready[: self.max_batch]

    def _expired(self):
        now = time.monotonic()
        return [r for r in self.active if not r.transfer_done and now - r.started > self.transfer_timeout]

    def _answer(self):
        timed_out = any(self.comm.allgather(bool(self._expired())))
        if timed_out:
            for request in self._expired():
                self.active.remove(request)
                self.inbox.fail(request, "transfer timed out")
        for request in [r for r in self.active if r.finished]:
            self.active.remove(request)
            self.inbox.reply(request)

    def _settle(self):
        batch, pending = self.previous
        for request, token in zip(batch, pending.result()):
            request.produced.append(token)
        self._answer()

    def loop(self):
        while not (self.shutdown and not any(self.comm.allgather(len(self.active)))):
            self._fetch()
            batch = self._schedule()
            sizes = self.comm.allgather(len(batch))
            all_busy = all(sizes)
            busy_here = bool(batch)
            current = None
            if any(sizes):
                pending = self.model.forward_async(batch, pad_to=max(sizes))
                current = (batch, pending) if batch else None
            settle_now = all_busy or not busy_here
            if self.previous is not None and settle_now:
                self._settle()
                self.previous = None
            if current is not None:
                if self.previous is not None:
                    self._settle()
                self.previous = current
