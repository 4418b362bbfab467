import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

from ledger import make_room, note
from studio import Brush, latents, open_studio


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument("--keep", type=int, default=3)
    args = parser.parse_args()

    accelerator = open_studio(args)
    brush = Brush()
    opt = torch.optim.AdamW(brush.parameters(), lr=1e-4)
    brush, opt, loader = accelerator.prepare(brush, opt, latents(args))

    step = 0
    for epoch in range(args.epochs):
        for (clean,) in loader:
            with accelerator.accumulate(brush):
                level = torch.rand(len(clean), device=clean.device)
                noise = torch.randn_like(clean)
                noisy = clean + level[:, None, None, None] * noise
                loss = F.mse_loss(brush(noisy, level).float(), noise)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            if step % args.save_every == 0:
                folder = Path(args.out) / f"checkpoint-{step}"
                if accelerator.is_main_process:
                    make_room(args.out, args.keep)
                    accelerator.save_state(folder)
                    note(folder, step, epoch)
                    accelerator.print(f"saved {folder}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
