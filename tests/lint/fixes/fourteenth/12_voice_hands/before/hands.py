import random

from torch.utils.data import Sampler


class TimedHands(Sampler):
    def __init__(self, seconds, most, world, rank, shuffle=False, drop_last=False, seed=0):
        self.seconds = seconds
        self.most = most
        self.world = world
        self.rank = rank
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _next_hand(self, queue):
        hand, used = [], 0.0
        while queue and (not hand or used + self.seconds[queue[-1]] <= self.most):
            index = queue.pop()
            hand.append(index)
            used += self.seconds[index]
        return hand

    def __iter__(self):
        queue = list(range(len(self.seconds)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(queue)
        while queue:
            hands = []
            while queue and len(hands) < self.world:
                hands.append(self._next_hand(queue))
            if len(hands) < self.world:
                if self.drop_last:
                    return
                if self.rank >= len(hands):
                    return
            yield hands[self.rank]
