from agree import all_ranks_true, largest
from crates import memory_of, pack


class Planner:
    def __init__(self, sizes, budget, bytes_per_token):
        self.sizes = sorted(sizes, reverse=True)
        self.budget = budget
        self.bytes_per_token = bytes_per_token

    def estimate(self, lengths, room):
        crates = pack(lengths, room)
        return crates, memory_of(crates, room, self.bytes_per_token)

    def choose(self, lengths):
        for room in self.sizes:
            failure = None
            try:
                crates, need = self.estimate(lengths, room)
            except ValueError as error:
                failure = error
            if not all_ranks_true(failure is None):
                raise failure or ValueError("another rank could not plan this job")
            if all_ranks_true(need <= self.budget):
                return crates, largest(len(crates))
        raise RuntimeError("no crate size is within the budget of every rank")
