import json
import os
import sys

import torch
import torch.distributed as dist
from torchvision.io import write_video

from tiled_decoder import FrameDecoder, TileParallelDecoder


def run(request, decoder, device):
    h, w = request["height"] // 16, request["width"] // 16
    g = torch.Generator(device).manual_seed(request.get("seed", 0))
    latent = torch.randn(1, 24, request["frames"], h, w, device=device, generator=g)
    return decoder.decode(latent)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    decoder = TileParallelDecoder(FrameDecoder().to(device).eval())
    with open(sys.argv[1]) as f:
        requests = [json.loads(line) for line in f]
    for n, request in enumerate(requests):
        clip = run(request, decoder, device)
        if dist.get_rank() == 0:
            pixels = ((clip + 1) * 127.5).byte().permute(1, 2, 3, 0).cpu()
            write_video(f"clip_{n:04d}.mp4", pixels, fps=request.get("fps", 24))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
