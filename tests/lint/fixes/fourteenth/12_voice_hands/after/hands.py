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
                hands = self._deal_again(hands)
            yield hands[self.rank]

    def _deal_again(self, hands):
        rest = [index for hand in hands for index in hand]
        while len(rest) < self.world:
            rest.append(rest[len(rest) % len(hands)])
        return [rest[r :: self.world] for r in range(self.world)]
