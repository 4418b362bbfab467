import torch
import torch.distributed as dist


class Link:
    """Transfers between neighbouring stages; all of them have one shape."""

    def __init__(self, shape, device):
        self.shape = shape
        self.device = device

    def _room(self):
        return torch.empty(self.shape, device=self.device)

    def give(self, tensor, peer):
        if peer is not None:
            dist.send(tensor.contiguous(), dst=peer)

    def take(self, peer):
        room = self._room()
        dist.recv(room, src=peer)
        return room

    def swap(self, tensor, peer):
        room = self._room()
        both = [
            dist.P2POp(dist.isend, tensor.contiguous(), peer),
            dist.P2POp(dist.irecv, room, peer),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return room
