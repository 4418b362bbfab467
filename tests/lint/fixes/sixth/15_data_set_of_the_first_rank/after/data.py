from torch.utils.data import DataLoader, TensorDataset


class Data:
    def __init__(self, fabric):
        self.fabric = fabric

    def make_dataset(self, x, y):
        return TensorDataset(x, y)

    def loader(self, x, y):
        return DataLoader(self.make_dataset(x, y), batch_size=8)
