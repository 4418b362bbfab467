import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed


def initialize_distributed(tensor_parallel=1, pipeline_parallel=1):
    parallel_state.destroy_model_parallel()
    rank = int(os.environ["LOCAL_RANK"])
    world_size = torch.cuda.device_count()
    torch.cuda.set_device(rank)
    dist.init_process_group(world_size=world_size, rank=rank)
    parallel_state.initialize_model_parallel(tensor_parallel, pipeline_parallel)


def forward_step(data_iterator, model):
    batch = {k: v.cuda(non_blocking=True) for k, v in next(data_iterator).items()}

    def loss_func(output):
        mask = batch["loss_mask"].view(-1).float()
        loss = (output.float().view(-1) * mask).sum() / mask.sum()
        return loss, {"lm loss": loss}

    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return output, loss_func


def main(build_model, build_iterator, steps=5):
    initialize_distributed(tensor_parallel=2, pipeline_parallel=1)
    model_parallel_cuda_manual_seed(123)
    model = build_model().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    iterator = build_iterator()
    forward_backward = get_forward_backward_func()
    for step in range(steps):
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=iterator,
            model=model,
            num_microbatches=1,
            seq_length=64,
            micro_batch_size=8,
            decoder_seq_length=64,
            forward_only=False,
        )
        optimizer.step()
        print(f"step {step}: {losses}")
