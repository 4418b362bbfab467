import torch


class Draw:
    def __init__(self, temperature=0.8):
        self.temperature = temperature

    def __call__(self, logits):
        if self.temperature == 0:
            return logits.argmax(-1)
        probs = torch.softmax(logits.float() / self.temperature, dim=-1)
        return torch.multinomial(probs, 1).squeeze(-1)
