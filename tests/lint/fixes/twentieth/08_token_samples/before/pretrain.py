import itertools
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.tensorboard import SummaryWriter

from evaluation import evaluate_and_print, is_last_rank
from modules import build_stage, token_batches, train_step
from schedule import Stages


@dataclass
class Config:
    pp: int = 2
    width: int = 2048
    seq: int = 1024
    micro: int = 2
    micro_batches: int = 8
    eval_iters: int = 4
    eval_every: int = 500
    iterations: int = 20000


def show_tokens(collected, iteration, writer):
    for i, item in enumerate(collected[:4]):
        writer.add_text(f"sample/{i}", str(item["logits"][0].argmax(-1)[:64].tolist()), iteration)


def main():
    cfg = Config()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size() // cfg.pp, cfg.pp), mesh_dim_names=("dp", "pp"))
    stages = Stages(mesh["pp"].get_group(), (cfg.micro, cfg.seq, cfg.width), torch.device("cuda"))
    model = build_stage(cfg, stages.stage).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train = token_batches("data/train.bin", cfg, mesh.get_local_rank("dp"))
    valid = itertools.cycle(token_batches("data/valid.bin", cfg, mesh.get_local_rank("dp")))
    writer = SummaryWriter("runs/pp") if is_last_rank() else None

    for iteration in range(1, cfg.iterations + 1):
        train_step(cfg, stages, model, optimizer, train, mesh["dp"].get_group())
        if iteration % cfg.eval_every == 0:
            evaluate_and_print(cfg, stages, model, valid, iteration, writer, show_tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
