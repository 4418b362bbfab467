import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from score import validate


class TinyUNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = nn.Conv3d(4, width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(width, 1, 2, stride=2)

    def forward(self, x):
        return self.up(torch.relu(self.down(x)))


def scans(n):
    return TensorDataset(torch.randn(n, 4, 32, 32, 32), torch.rand(n, 1, 32, 32, 32).round())


def sharded(data, batch_size):
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def main(epochs=30):
    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    train_loader = sharded(scans(480), 4)
    val_loader = sharded(scans(96), 4)

    model = TinyUNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    best = float("inf")
    for epoch in range(epochs):
        train_loader.sampler.set_epoch(epoch)
        for scan, label in train_loader:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(scan.cuda()), label.cuda())
            loss.backward()
            optimizer.step()

        logs = validate(model, val_loader)
        if hvd.rank() == 0:
            print(f"Epoch {epoch + 1}/{epochs}", logs)
            if logs["val_loss"] < best:
                best = logs["val_loss"]
                torch.save(model.state_dict(), "unet_best.pt")


if __name__ == "__main__":
    main()
