import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from moe import ExpertLayer
from quant import RangeQuantizer


def max_calibrate(model, batches, group):
    quantizers = [m for m in model.modules() if isinstance(m, RangeQuantizer)]
    for q in quantizers:
        q.calibrating = True
    with torch.no_grad():
        for batch in batches:
            model(batch.cuda())
    for q in quantizers:
        q.calibrating = False
    for layer in model.modules():
        if isinstance(layer, ExpertLayer):
            layer.share_local_amax()
    for q in quantizers:
        q.sync_amax(group)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="data/calibration.pt")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--out", default="quantised")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    group = dist.group.WORLD
    torch.manual_seed(0)
    model = nn.Sequential(*[ExpertLayer(1024, 2816, args.experts, group) for _ in range(args.layers)]).cuda()
    max_calibrate(model, torch.load(args.tokens).split(4), group)
    os.makedirs(args.out, exist_ok=True)
    ranges = {n: m.amax.item() for n, m in model.named_modules() if isinstance(m, RangeQuantizer) and m.amax is not None}
    torch.save(ranges, f"{args.out}/ranges_{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
