import logging
import os
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from loop import Loop
from options import Options
from vl_model import build_model
from vl_data import build_loader

log = logging.getLogger("pretrain")


def latest_folder(root):
    if not os.path.isdir(root):
        return None
    found = [d for d in os.listdir(root) if d.startswith("step")]
    if not found:
        return None
    return os.path.join(root, max(found, key=lambda d: int(d[4:])))


def main(opts: Options):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()

    model = FSDP(build_model(opts).cuda(), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=opts.lr)
    loop = Loop(opts, model, optimizer, build_loader(opts, rank))

    if rank == 0:
        os.makedirs(opts.save_folder, exist_ok=True)
        log.info("Options:")
        for key, value in asdict(opts).items():
            log.info("  %s=%s", key, value)

    if opts.allow_resume:
        folder = latest_folder(opts.save_folder)
        if folder is not None:
            log.info("Resuming from %s", folder)
            loop.restore(folder)

    dist.barrier()
    loop.fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Options())
