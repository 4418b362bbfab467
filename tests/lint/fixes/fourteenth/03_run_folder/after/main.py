import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from engine import Engine
from task import SlopeTask


def main():
    x = torch.randn(2048, 16)
    loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=64)
    Engine(sys.argv[1], epochs=4).fit(SlopeTask(48), loader)


if __name__ == "__main__":
    main()
