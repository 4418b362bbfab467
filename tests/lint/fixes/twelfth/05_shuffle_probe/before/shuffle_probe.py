import torch


class ShuffleProbe:
    """How far the output moves when one feature is permuted within the batch."""

    def __init__(self, net):
        self.net = net

    def _permuted(self, ids):
        filled = (ids >= 0).any(1).nonzero().flatten()
        if filled.numel() < 2:
            return None
        out = ids.clone()
        out[filled] = ids[filled[torch.randperm(filled.numel(), device=ids.device)]]
        return out

    def _one(self, features, index, base):
        changed = self._permuted(features[index])
        if changed is None:
            return None
        moved = list(features)
        moved[index] = changed
        return (self.net(moved) - base).abs().mean()

    @torch.no_grad()
    def run(self, batches):
        sums, counts = {}, {}
        for features in batches:
            base = self.net(features)
            for index in range(len(features)):
                shift = self._one(features, index, base)
                if shift is None:
                    continue
                sums[index] = sums.get(index, 0.0) + shift.item()
                counts[index] = counts.get(index, 0) + 1
        return {i: sums[i] / counts[i] for i in sums}
