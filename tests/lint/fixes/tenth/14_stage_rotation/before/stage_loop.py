import torch


class StageLoop:
    def __init__(self, part, link, prompts=None):
        self.part = part
        self.link = link
        self.prompts = prompts
        self.tokens = torch.zeros(link.token_shape, dtype=torch.long, device=link.device)
        self.finished = []

    def _forward(self):
        if self.link.is_first:
            hidden = self.part(self.prompts.pop() if self.prompts else self.tokens)
        else:
            hidden = self.part(self.link.recv_hidden())
        if self.link.is_last:
            return hidden.argmax(-1)
        self.link.send_hidden(hidden)
        return self.tokens

    def _rotate(self, outgoing):
        self.link.send_tokens(outgoing)
        return self.link.recv_tokens()

    @torch.no_grad()
    def run(self, rounds):
        for _ in range(rounds):
            outgoing = self._forward()
            self.tokens = self._rotate(outgoing)
            self.finished.append(self.tokens)
        return self.finished
