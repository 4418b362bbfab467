import torch


class MaskTask:
    def __init__(self, count=400):
        gen = torch.Generator().manual_seed(11)
        self.truth = torch.rand(count, 16, 16, generator=gen) > torch.rand(count, 1, 1, generator=gen) * 1.6

    def __len__(self):
        return len(self.truth)

    def grade(self, index, guess):
        truth = self.truth[index]
        if not truth.any():
            return {"empty_ok": float(not guess.any())}
        both = (truth & guess).sum().item()
        either = (truth | guess).sum().item()
        out = {"iou": both / either}
        if truth.float().mean() < 0.1:
            out["small_iou"] = out["iou"]
        return out
