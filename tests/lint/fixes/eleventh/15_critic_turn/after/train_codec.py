import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from codec_turn import CodecTurn
from critic_turn import CriticTurn


def wrap(net, device):
    return DistributedDataParallel(net.to(device), device_ids=[device.index])


def build(device):
    codec = torch.nn.Sequential(
        torch.nn.Conv1d(1, 64, 8, stride=8), torch.nn.ELU(), torch.nn.ConvTranspose1d(64, 1, 8, stride=8)
    )
    critic = torch.nn.Sequential(
        torch.nn.Conv1d(1, 64, 15, stride=4), torch.nn.LeakyReLU(0.2), torch.nn.Conv1d(64, 1, 5)
    )
    return wrap(codec, device), wrap(critic, device)


def main(steps=10000, warmup=500):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    codec, critic = build(device)
    codec_turn = CodecTurn(codec, critic, torch.optim.Adam(codec.parameters(), lr=3e-4))
    critic_turn = CriticTurn(critic, torch.optim.Adam(critic.parameters(), lr=3e-4))
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        wave = torch.randn(8, 1, 16000, device=device)
        back, loss = codec_turn(wave)
        level = critic_turn(wave, back) if step >= warmup else 0.0
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"{step}: codec {loss:.3f}, critic {level:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
