import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from mesh_utils import create_device_mesh


@dataclass
class DistEnv:
    timeout_minutes: int = 30
    pp_size: int = 2
    tp_size: int = 1
    cp_size: int = 1


def initialize_distributed(env: DistEnv):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=timedelta(minutes=env.timeout_minutes))
    return create_device_mesh(env, dist.get_world_size())


def build_schedule(stage_module, env, mesh, n_microbatches, loss_fn):
    device = torch.device("cuda", torch.cuda.current_device())
    stage = PipelineStage(
        stage_module.to(device),
        mesh.get_local_rank("pp"),
        env.pp_size,
        device,
        group=mesh.get_group("pp"),
    )
    return Schedule1F1B(stage, n_microbatches, loss_fn=loss_fn)


def train(schedule, loader, is_first, is_last, optimizer):
    for inputs, labels in loader:
        args = (inputs.cuda(),) if is_first else ()
        target = labels.cuda() if is_last else None
        schedule.step(*args, target=target)
        optimizer.step()
        optimizer.zero_grad()
