import torch
import torch.distributed as dist

from expert_layer import ExpertLayer
from tuner import TacticTuner


@torch.inference_mode()
def tune(layers, tuner, width, sizes):
    tuner.enabled = True
    for n in sizes:
        x = torch.randn(n, width, device="cuda")
        for layer in layers:
            x = layer(x)
    tuner.enabled = False


def main(width=1024, depth=8, experts=64):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    group = dist.group.WORLD
    tuner = TacticTuner(group)
    layers = [ExpertLayer(width, experts, tuner, group).cuda() for _ in range(depth)]
    tune(layers, tuner, width, sizes=(8, 64, 512, 4096))
    return layers
