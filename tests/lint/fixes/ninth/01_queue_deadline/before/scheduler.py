import time
from collections import deque
from dataclasses import dataclass, field

import torch

from requests_io import share_requests


@dataclass
class Job:
    rid: int
    tokens: list
    queued_at: float = field(default_factory=time.perf_counter)
    produced: int = 0


class Scheduler:
    def __init__(self, runner, inbox, cpu_group, max_wait=10.0, slots=32):
        self.runner = runner
        self.inbox = inbox
        self.cpu_group = cpu_group
        self.max_wait = max_wait
        self.slots = slots
        self.waiting = deque()
        self.active = []

    def intake(self):
        for rid, tokens in share_requests(self.inbox, self.cpu_group):
            self.waiting.append(Job(rid, tokens))

    def drop_expired(self):
        if self.max_wait <= 0:
            return
        now = time.perf_counter()
        expired = {j.rid for j in self.waiting if now - j.queued_at > self.max_wait}
        if not expired:
            return
        self.waiting = deque(j for j in self.waiting if j.rid not in expired)

    def next_batch(self):
        while self.waiting and len(self.active) < self.slots:
            self.active.append(self.waiting.popleft())
        return self.active or None

    def settle(self, batch, next_tokens):
        for job, token in zip(batch, next_tokens.tolist()):
            job.tokens.append(token)
            job.produced += 1
        self.active = [j for j in batch if j.produced < 128]

    @torch.inference_mode()
    def event_loop(self):
        while True:
            self.intake()
            self.drop_expired()
            batch = self.next_batch()
            if batch is None:
                continue
            self.settle(batch, self.runner.decode(batch))
