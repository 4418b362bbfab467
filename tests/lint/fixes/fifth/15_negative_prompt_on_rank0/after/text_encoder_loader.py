import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from transformers import AutoTokenizer, UMT5EncoderModel


def load_text_encoder(path, cpu_offload):
    encoder = UMT5EncoderModel.from_pretrained(os.path.join(path, "text_encoder"), torch_dtype=torch.bfloat16)
    if cpu_offload:
        mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
        for block in encoder.encoder.block:
            fully_shard(block, mesh=mesh, offload_policy=CPUOffloadPolicy())
        fully_shard(encoder, mesh=mesh, offload_policy=CPUOffloadPolicy())
    else:
        encoder.cuda()
    return encoder.eval()


@torch.no_grad()
def encode(path, prompt, cpu_offload, device):
    encoder = load_text_encoder(path, cpu_offload)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(path, "tokenizer"))
    inputs = tokenizer(prompt, padding="max_length", max_length=512, truncation=True, return_tensors="pt").to(device)
    embeds = encoder(**inputs).last_hidden_state
    return embeds.to(device), inputs["attention_mask"].to(device)
