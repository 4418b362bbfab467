import torch
from torch.nn.parallel import DistributedDataParallel


class Workload:
    def __init__(self, device, batch_size=256, classes=10):
        self.device = device
        self.batch_size = batch_size
        self.classes = classes
        net = torch.nn.Sequential(
            torch.nn.Linear(100, 400), torch.nn.ReLU(), torch.nn.Linear(400, classes)
        )
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def batch(self):
        x = torch.randn(self.batch_size, 100, device=self.device)
        return x, x[:, : self.classes].argmax(-1)
