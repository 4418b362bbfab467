import torch


class BucketBatches:
    def __init__(self, lengths, edges, max_frames, shuffle=True, seed=0):
        self.lengths = lengths
        self.max_frames = max_frames
        self.shuffle = shuffle
        self.gen = torch.Generator().manual_seed(seed)
        self.batches = self._pack(self._assign(edges))

    def _assign(self, edges):
        slots = torch.bucketize(torch.tensor(self.lengths), torch.tensor(edges)).tolist()
        buckets = {}
        for item, slot in enumerate(slots):
            buckets.setdefault(slot, []).append(item)
        return [buckets[slot] for slot in sorted(buckets)]

    def _order(self, count):
        if not self.shuffle:
            return range(count)
        return torch.randperm(count, generator=self.gen).tolist()

    def _pack(self, buckets):
        batches = []
        for members in buckets:
            current, frames = [], 0
            for position in self._order(len(members)):
                item = members[position]
                if current and frames + self.lengths[item] > self.max_frames:
                    batches.append(current)
                    current, frames = [], 0
                current.append(item)
                frames += self.lengths[item]
            if current:
                batches.append(current)
        return [batches[i] for i in self._order(len(batches))]

    def part(self, rank, world):
        whole = len(self.batches) // world * world
        return self.batches[rank:whole:world]
