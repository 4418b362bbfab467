import numpy as np
import torch
import torch.distributed as dist


class CurriculumDataSampler:
    def __init__(self, clusters, micro_batch_size, data_parallel_rank, data_parallel_size,
                 gradient_accumulation_steps, data_parallel_group, drop_last=True, seed=1234):
        self.clusters = clusters
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = data_parallel_rank
        self.data_parallel_group = data_parallel_group
        self.micro_batch_times_data_parallel_size = micro_batch_size * data_parallel_size
        self.global_batch_size = self.micro_batch_times_data_parallel_size * gradient_accumulation_steps
        self.drop_last = drop_last
        self.np_rng = np.random.default_rng(seed)
        self.batch = []

    def get_sample_from_cluster(self, cidx, num_samples):
        taken, self.clusters[cidx] = self.clusters[cidx][:num_samples], self.clusters[cidx][num_samples:]
        return list(taken)

    def samples_per_cluster(self):
        share = self.global_batch_size // len(self.clusters)
        return [share] * len(self.clusters)

    def get_next_global_batch(self):
        if self.data_parallel_rank == 0:
            batch = []
            counts = self.samples_per_cluster()
            for cidx in range(len(counts)):
                batch += self.get_sample_from_cluster(cidx, counts[cidx])
            self.np_rng.shuffle(batch)
            batch = torch.tensor(batch, device="cuda", dtype=torch.long).view(-1)
        else:
            batch = torch.empty(self.global_batch_size, device="cuda", dtype=torch.long)
        dist.broadcast(batch, 0, group=self.data_parallel_group)
        self.batch = batch.tolist()

    def __iter__(self):
        while any(len(c) for c in self.clusters):
            if len(self.batch) == 0:
                self.get_next_global_batch()
            current = self.batch[:self.micro_batch_times_data_parallel_size]
            self.batch = self.batch[self.micro_batch_times_data_parallel_size:]
            if len(current) == self.micro_batch_times_data_parallel_size or not self.drop_last:
                start = self.data_parallel_rank * self.micro_batch_size
                yield current[start:start + self.micro_batch_size]
