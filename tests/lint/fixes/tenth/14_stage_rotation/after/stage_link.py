import torch
import torch.distributed as dist


class StageLink:
    """Neighbours of one pipeline stage; the last stage is followed by the first."""

    def __init__(self, width, slots, device):
        self.stage = dist.get_rank()
        self.stages = dist.get_world_size()
        self.nxt = (self.stage + 1) % self.stages
        self.prv = (self.stage - 1) % self.stages
        self.is_first = self.stage == 0
        self.is_last = self.stage == self.stages - 1
        self.hidden_shape = (slots, width)
        self.token_shape = (slots,)
        self.device = device

    def send_hidden(self, hidden):
        dist.send(hidden.contiguous(), dst=self.nxt)

    def recv_hidden(self):
        hidden = torch.empty(self.hidden_shape, device=self.device)
        dist.recv(hidden, src=self.prv)
        return hidden

    def send_tokens(self, tokens):
        dist.send(tokens.contiguous(), dst=self.nxt)

    def recv_tokens(self):
        tokens = torch.empty(self.token_shape, dtype=torch.long, device=self.device)
        dist.recv(tokens, src=self.prv)
        return tokens
