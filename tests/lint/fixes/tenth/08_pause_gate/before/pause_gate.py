import torch.distributed as dist

from pause_files import ask_pause, give_release, wait_paused


class PauseGate:
    def __init__(self, root, enabled=True):
        self.root = root
        self.enabled = enabled
        self.first = dist.get_rank() == 0

    def close(self, step):
        if not self.enabled:
            return None
        ticket = None
        if self.first:
            ticket = ask_pause(self.root, step)
            wait_paused(self.root, step, ticket)
        dist.barrier()
        return ticket

    def open(self, step, ticket):
        if self.enabled and self.first:
            give_release(self.root, step, ticket)
