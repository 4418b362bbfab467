import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LimbNet(pl.LightningModule):
    def __init__(self, points=13):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, points, 5, padding=2),
        )

    def forward(self, image):
        return self.net(image)

    def training_step(self, batch, _):
        image, maps = batch
        loss = nn.functional.mse_loss(self(image), maps)
        self.log("train_loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Sketcher:
    def __init__(self, image):
        self.image = image

    @torch.no_grad()
    def __call__(self, module):
        return module(self.image.to(module.device)).cpu()


def loader(count=2048):
    data = TensorDataset(torch.randn(count, 1, 64, 64), torch.rand(count, 13, 64, 64))
    return DataLoader(data, batch_size=32, shuffle=True)
