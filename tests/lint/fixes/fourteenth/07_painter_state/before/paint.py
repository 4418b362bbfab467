import argparse
import os

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from shelf import trim


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(65, width), nn.SiLU(), nn.Linear(width, 64))

    def forward(self, noisy, t):
        return self.body(torch.cat([noisy, t[:, None]], dim=1))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="painter")
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--checkpoint-every", type=int, default=500)
    parser.add_argument("--keep", type=int, default=3)
    return parser.parse_args()


def main():
    args = parse()
    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1)
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)

    model = Denoiser(256)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(64000, 64)), batch_size=16, shuffle=True, drop_last=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)

    bar = tqdm(range(args.max_steps), disable=not accelerator.is_local_main_process)
    step = 0
    while step < args.max_steps:
        for (latents,) in loader:
            noise = torch.randn_like(latents)
            t = torch.rand(latents.shape[0], device=latents.device)
            noisy = (1 - t[:, None]) * latents + t[:, None] * noise
            loss = nn.functional.mse_loss(model(noisy, t).float(), noise)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            step += 1
            bar.update(1)

            if step % args.checkpoint_every == 0:
                if accelerator.is_main_process:
                    trim(args.output_dir, args.keep)
                    target = os.path.join(args.output_dir, f"checkpoint-{step}")
                    accelerator.save_state(target)
                    print(f"saved {target}")
            if step >= args.max_steps:
                break

    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
