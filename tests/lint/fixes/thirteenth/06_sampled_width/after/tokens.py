import torch
import torch.distributed as dist


class TokenWire:
    """Carries the sampled tokens from the last stage to the stages before it."""

    def __init__(self, ahead, device):
        self.width = ahead + 1
        self.device = device
        self.last = dist.get_world_size() - 1

    @property
    def is_last(self):
        return dist.get_rank() == self.last

    def share(self, sampled):
        padded = torch.full((sampled.shape[0], self.width), -1, dtype=torch.long, device=self.device)
        padded[:, : sampled.shape[1]] = sampled
        dist.broadcast(padded, src=self.last)
        return padded

    def await_tokens(self, rows):
        sampled = torch.empty(rows, self.width, dtype=torch.long, device=self.device)
        dist.broadcast(sampled, src=self.last)
        return sampled
