import re
import string
from collections import Counter

import torch
import torch.distributed as dist


def sum_over_ranks(values, device):
    if not (dist.is_available() and dist.is_initialized()):
        return list(values)
    packed = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(packed, op=dist.ReduceOp.SUM)
    return packed.tolist()


def normalise(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def token_f1(prediction, answer):
    pred, gold = normalise(prediction).split(), normalise(answer).split()
    common = sum((Counter(pred) & Counter(gold)).values())
    if common == 0:
        return 0.0
    p, r = common / len(pred), common / len(gold)
    return 2 * p * r / (p + r)


class AnswerOverlap:
    def __init__(self, device):
        self.device = device
        self.reset()

    def reset(self):
        self._em, self._f1, self._count = 0.0, 0.0, 0.0

    def __call__(self, predictions, answer_lists):
        em, f1, count = 0.0, 0.0, 0.0
        for prediction, answers in zip(predictions, answer_lists):
            em += max(float(normalise(prediction) == normalise(a)) for a in answers)
            f1 += max(token_f1(prediction, a) for a in answers)
            count += 1.0
        counts = sum_over_ranks([em, f1, count], self.device)
        self._em += counts[0]
        self._f1 += counts[1]
        self._count += counts[2]

    def get_metric(self, reset=False):
        n = max(self._count, 1.0)
        result = {"em": self._em / n, "f1": self._f1 / n}
        if reset:
            self.reset()
        return result
