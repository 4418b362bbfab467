import os

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed


def initialize_distributed(tensor_model_parallel_size=1, pipeline_model_parallel_size=1):
    parallel_state.destroy_model_parallel()

    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(backend="nccl", world_size=world_size, rank=rank)

    parallel_state.initialize_model_parallel(tensor_model_parallel_size, pipeline_model_parallel_size)


def train_step(model, optimizer, batch):
    loss = model(batch).float().mean()
    loss.backward()
    torch.distributed.all_reduce(loss.detach(), group=parallel_state.get_data_parallel_group())
    optimizer.step()
    optimizer.zero_grad()
    return loss


if __name__ == "__main__":
    initialize_distributed(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
    model_parallel_cuda_manual_seed(123)
    net = torch.nn.Linear(64, 64).cuda()
    opt = torch.optim.Adam(net.parameters())
    for step in range(5):
        out = train_step(net, opt, torch.randn(8, 64, device="cuda"))
        print(f"step {step} loss {out.item():.4f}")
