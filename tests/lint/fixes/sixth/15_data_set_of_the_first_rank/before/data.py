from torch.utils.data import DataLoader, TensorDataset


class Data:
    def __init__(self, fabric):
        self.fabric = fabric

    def make_dataset(self, x, y):
        if self.fabric.global_rank == 0:
            dataset = TensorDataset(x, y)
            return dataset
        self.fabric.barrier()

    def loader(self, x, y):
        return DataLoader(self.make_dataset(x, y), batch_size=8)
