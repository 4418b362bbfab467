import argparse
from collections import defaultdict
from pathlib import Path

import torch
from accelerate import Accelerator
from PIL import Image

from autoencoder import build_autoencoder
from buckets import AspectBucket
from screening import PictureScreen, loader_for, make_batches


def discover(folder):
    groups = defaultdict(list)
    for path in Path(folder).rglob("*.jpg"):
        with Image.open(path) as picture:
            groups[round(picture.width / picture.height, 1)].append(str(path))
    return [AspectBucket(name, paths) for name, paths in sorted(groups.items())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--screen", default="Falconsai/nsfw_image_detection")
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16")
    buckets = discover(args.folder)
    for bucket in buckets:
        bucket.split_between(accelerator.process_index, accelerator.num_processes, args.batch_size)

    screen = PictureScreen(args.screen, accelerator.device)
    for bucket in buckets:
        for path in dict.fromkeys(bucket.paths):
            if screen.rejects(path):
                bucket.drop(path)
    accelerator.wait_for_everyone()

    model = build_autoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    load = loader_for(256)
    for epoch in range(args.epochs):
        for bucket in buckets:
            for batch in make_batches(bucket.paths, args.batch_size, load):
                batch = batch.to(accelerator.device)
                loss = torch.nn.functional.l1_loss(model(batch), batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
