from torch.utils.data import DataLoader


class NodeDataModule:
    def __init__(self, data, sampler_cls, batch_size=1024, num_workers=4, persistent_workers=True):
        self.data = data
        self.sampler = sampler_cls(data)
        self.kwargs = dict(batch_size=batch_size, num_workers=num_workers)
        if num_workers > 0:
            self.kwargs["persistent_workers"] = persistent_workers
            self.kwargs["multiprocessing_context"] = "spawn"

    def collate(self, index):
        return self.sampler.sample_from_nodes(index)

    def dataloader(self, mask, rank, world_size, shuffle=False):
        nodes = mask.nonzero().view(-1)
        nodes = nodes[:len(nodes) // world_size * world_size][rank::world_size]
        return DataLoader(nodes.tolist(), shuffle=shuffle, collate_fn=self.collate, **self.kwargs)
