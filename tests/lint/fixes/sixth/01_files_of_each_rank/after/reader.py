import math


class FileReader:
    """Gives the samples of the files that belong to this rank, a batch at a time."""

    def __init__(self, files, rank, comm_size, batch_size, samples_per_file):
        self.files = files
        self.rank = rank
        self.comm_size = comm_size
        self.batch_size = batch_size
        self.samples_per_file = samples_per_file

    def my_files(self):
        return [f for i, f in enumerate(self.files) if i % self.comm_size == self.rank]

    def __len__(self):
        return math.floor(len(self.my_files()) * self.samples_per_file / self.batch_size)

    def next(self):
        batch = []
        for name in self.my_files():
            for sample in range(self.samples_per_file):
                batch.append((name, sample))
                if len(batch) == self.batch_size:
                    yield batch
                    batch = []
