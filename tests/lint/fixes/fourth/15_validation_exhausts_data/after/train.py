import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from validate import Validator


def main(job_config, model, data, tokenizer, loss_fn, train_loader, world_size):
    mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("dp",))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    validator = Validator(
        job_config, data, tokenizer, mesh.get_local_rank(), world_size, loss_fn, mesh.get_group("dp")
    )
    for step, (inputs, labels) in enumerate(train_loader, 1):
        loss_fn(model(inputs["input"].cuda()), labels.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % job_config.validation.freq == 0:
            validator.validate([model], step)
