import os

import torch
import torch.distributed as dist

from masked_module import MaskedModule


class Frames(torch.nn.Module):
    def __init__(self, hop=320, width=256, classes=100):
        super().__init__()
        self.conv = torch.nn.Conv1d(1, width, hop, stride=hop)
        self.mix = torch.nn.GRU(width, width, batch_first=True)
        self.out = torch.nn.Linear(width, classes)

    def forward(self, wave):
        h = self.conv(wave.unsqueeze(1)).transpose(1, 2)
        return self.out(self.mix(h)[0])


def fake_batch(n=8, frames=150):
    wave = torch.randn(n, frames * 320) * 10 ** torch.randint(-3, 3, (1,)).item()
    return wave, torch.randint(0, 100, (n, frames)), torch.rand(n, frames) < 0.4


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())
    module = MaskedModule(Frames(), device)
    for step in range(5000):
        loss = module.masked_step(fake_batch())
        if step % 100 == 0 and loss is not None and dist.get_rank() == 0:
            print(f"{step}: {loss.item():.4f} ({module.skipped} skipped)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
