import torch
from torchmetrics import Metric


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


class WER(Metric):
    full_state_update = True

    def __init__(self, decode, dist_sync_on_step=False, sync_on_compute=True):
        super().__init__(dist_sync_on_step=dist_sync_on_step, sync_on_compute=sync_on_compute)
        self.decode = decode
        self.add_state("scores", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("words", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, encoded, lengths, targets, target_lengths):
        for hyp, ref in zip(self.decode(encoded, lengths), self.decode.references(targets, target_lengths)):
            self.scores += edit_distance(hyp, ref)
            self.words += len(ref)

    def compute(self):
        return self.scores.float() / self.words, self.scores, self.words
