import argparse
import logging
import math
import os
import shutil

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import ProjectConfiguration, set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from tqdm.auto import tqdm

from latents import build_loader

logger = logging.getLogger("train_sdxl")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrained", default="stabilityai/stable-diffusion-xl-base-1.0")
    parser.add_argument("--instance_data_dir", required=True)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--max_train_steps", type=int, default=10000)
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument("--checkpoints_total_limit", type=int, default=3)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=1e-5)
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--zero_stage", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def rotate_checkpoints(output_dir, limit):
    found = [d for d in os.listdir(output_dir) if d.startswith("checkpoint-")]
    found.sort(key=lambda d: int(d.split("-")[1]))
    for name in found[: max(0, len(found) - limit + 1)]:
        logger.info("removing %s", name)
        shutil.rmtree(os.path.join(output_dir, name))


def diffusion_loss(unet, scheduler, batch):
    noise = torch.randn_like(batch["latents"])
    steps = scheduler.config.num_train_timesteps
    t = torch.randint(0, steps, (noise.shape[0],), device=noise.device).long()
    noisy = scheduler.add_noise(batch["latents"], noise, t)
    extra = {"text_embeds": batch["pooled"], "time_ids": batch["time_ids"]}
    pred = unet(noisy, t, batch["prompt_embeds"], added_cond_kwargs=extra).sample
    return F.mse_loss(pred.float(), noise.float())


def main():
    args = parse_args()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision="bf16",
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=args.zero_stage),
        project_config=ProjectConfiguration(project_dir=args.output_dir),
    )
    set_seed(args.seed)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()

    vae = AutoencoderKL.from_pretrained(args.pretrained, subfolder="vae")
    unet = UNet2DConditionModel.from_pretrained(args.pretrained, subfolder="unet")
    noise_scheduler = DDPMScheduler.from_pretrained(args.pretrained, subfolder="scheduler")
    loader = build_loader(args.instance_data_dir, vae, args.train_batch_size, accelerator.device)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate)
    lr_scheduler = get_scheduler("cosine", optimizer, 500, args.max_train_steps)
    unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)

    global_step = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        global_step = int(args.resume_from_checkpoint.rsplit("-", 1)[1])
    epochs = math.ceil(args.max_train_steps / len(loader))
    bar = tqdm(total=args.max_train_steps, initial=global_step, disable=not accelerator.is_local_main_process)
    for epoch in range(epochs):
        for batch in loader:
            with accelerator.accumulate(unet):
                loss = diffusion_loss(unet, noise_scheduler, batch)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            bar.update(1)
            global_step += 1
            if global_step % args.checkpointing_steps == 0:
                save_path = os.path.join(args.output_dir, f"checkpoint-{global_step}")
                if accelerator.is_main_process:
                    rotate_checkpoints(args.output_dir, args.checkpoints_total_limit)
                accelerator.save_state(save_path)
                if accelerator.is_main_process:
                    logger.info("saved state to %s", save_path)
            if global_step >= args.max_train_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
