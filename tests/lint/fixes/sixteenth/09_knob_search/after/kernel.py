import torch


class TiledExperts:
    def __init__(self, tokens, weights, knobs):
        rows, width = tokens.shape
        self.tokens, self.weights, self.knobs = tokens, weights, knobs
        self.out = torch.empty_like(tokens)
        self.scratch = torch.empty(knobs.stages, knobs.split, rows, width, device=tokens.device)

    def __call__(self):
        step = self.weights.size(0) // self.knobs.split
        for at in range(0, len(self.tokens), self.knobs.tile):
            rows = slice(at, at + self.knobs.tile)
            for part in range(self.knobs.split):
                cut = slice(part * step, (part + 1) * step)
                torch.mm(self.tokens[rows, cut], self.weights[cut], out=self.scratch[0, part, rows])
            self.out[rows] = self.scratch[0, :, rows].sum(0)
        return self.out
