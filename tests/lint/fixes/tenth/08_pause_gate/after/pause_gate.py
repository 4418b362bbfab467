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
        trouble = [None]
        if self.first:
            try:
                ticket = ask_pause(self.root, step)
                wait_paused(self.root, step, ticket)
            except TimeoutError as err:
                trouble[0] = str(err)
        dist.broadcast_object_list(trouble, src=0)
        if trouble[0] is not None:
            raise TimeoutError(trouble[0])
        return ticket

    def open(self, step, ticket):
        if self.enabled and self.first:
            give_release(self.root, step, ticket)
