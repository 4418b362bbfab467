import argparse
import os
import shutil

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.logging import get_logger
from accelerate.utils import ProjectConfiguration, set_seed
from datasets import load_dataset
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from torchvision import transforms
from tqdm.auto import tqdm
from transformers import CLIPTextModel, CLIPTokenizer

logger = get_logger(__name__)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrained", default="stabilityai/stable-diffusion-2-1-base")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--output_dir", default="logo-out")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=1e-5)
    parser.add_argument("--max_train_steps", type=int, default=10000)
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument("--checkpoints_total_limit", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def prune_checkpoints(output_dir, limit):
    kept = sorted((d for d in os.listdir(output_dir) if d.startswith("checkpoint-")), key=lambda d: int(d.split("-")[1]))
    for name in kept[: max(0, len(kept) - limit + 1)]:
        shutil.rmtree(os.path.join(output_dir, name))


def build_dataset(args, tokenizer):
    view = transforms.Compose(
        [transforms.Resize(args.resolution), transforms.CenterCrop(args.resolution), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    )

    def prepare(rows):
        ids = tokenizer(rows["text"], max_length=77, padding="max_length", truncation=True, return_tensors="pt").input_ids
        return {"pixel_values": [view(i.convert("RGB")) for i in rows["image"]], "input_ids": list(ids)}

    return load_dataset(args.dataset, split="train").with_transform(prepare)


def main():
    args = parse_args()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision="fp16",
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=args.gradient_accumulation_steps),
        project_config=ProjectConfiguration(project_dir=args.output_dir),
    )
    set_seed(args.seed)
    os.makedirs(args.output_dir, exist_ok=True)

    tokenizer = CLIPTokenizer.from_pretrained(args.pretrained, subfolder="tokenizer")
    text_encoder = CLIPTextModel.from_pretrained(args.pretrained, subfolder="text_encoder").to(accelerator.device).eval()
    vae = AutoencoderKL.from_pretrained(args.pretrained, subfolder="vae").to(accelerator.device).eval()
    unet = UNet2DConditionModel.from_pretrained(args.pretrained, subfolder="unet")
    noise_scheduler = DDPMScheduler.from_pretrained(args.pretrained, subfolder="scheduler")
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate)
    loader = torch.utils.data.DataLoader(build_dataset(args, tokenizer), args.train_batch_size, shuffle=True, num_workers=4)
    lr_scheduler = get_scheduler("constant", optimizer)
    unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)

    progress = tqdm(total=args.max_train_steps, disable=not accelerator.is_local_main_process)
    global_step = 0
    while global_step < args.max_train_steps:
        for batch in loader:
            with accelerator.accumulate(unet):
                with torch.no_grad():
                    latents = vae.encode(batch["pixel_values"]).latent_dist.sample() * vae.config.scaling_factor
                    context = text_encoder(batch["input_ids"])[0]
                noise = torch.randn_like(latents)
                steps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(latents),), device=latents.device)
                pred = unet(noise_scheduler.add_noise(latents, noise, steps), steps, context).sample
                loss = F.mse_loss(pred.float(), noise.float())
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress.update(1)
                global_step += 1
                if global_step % args.checkpointing_steps == 0:
                    save_path = os.path.join(args.output_dir, f"checkpoint-{global_step}")
                    if accelerator.is_main_process:
                        prune_checkpoints(args.output_dir, args.checkpoints_total_limit)
                        accelerator.save_state(save_path)
                        logger.info(f"saved {save_path}")
            if global_step >= args.max_train_steps:
                break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
