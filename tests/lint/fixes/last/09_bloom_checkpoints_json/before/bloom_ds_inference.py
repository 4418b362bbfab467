import io
import json
import os
from argparse import ArgumentParser
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import is_offline_mode

parser = ArgumentParser()
parser.add_argument("--name", required=True)
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()

world_size = int(os.getenv("WORLD_SIZE", "1"))
deepspeed.init_distributed("nccl")
rank = dist.get_rank()
checkpoints_json = "checkpoints.json"


def get_repo_root(model_name_or_path):
    if rank == 0:
        snapshot_download(model_name_or_path, local_files_only=is_offline_mode(), ignore_patterns=["*.safetensors"])

    dist.barrier()

    return snapshot_download(model_name_or_path, local_files_only=True, ignore_patterns=["*.safetensors"])


def get_checkpoint_files(model_name_or_path):
    cached_repo_dir = get_repo_root(model_name_or_path)
    return [str(entry) for entry in Path(cached_repo_dir).rglob("*.[bp][it][n]") if entry.is_file()]


def write_checkpoints_json():
    with io.open(checkpoints_json, "w", encoding="utf-8") as f:
        data = {"type": "BLOOM", "checkpoints": get_checkpoint_files(args.name), "version": 1.0}
        json.dump(data, f)


tokenizer = AutoTokenizer.from_pretrained(args.name)
config = AutoConfig.from_pretrained(args.name)
with deepspeed.OnDevice(dtype=torch.float16, device="meta"):
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)

repo_root = get_repo_root(args.name)
if rank == 0:
    write_checkpoints_json()
dist.barrier()

model = deepspeed.init_inference(
    model.eval(),
    mp_size=world_size,
    base_dir=repo_root,
    dtype=torch.float16,
    checkpoint=checkpoints_json,
    replace_with_kernel_inject=True,
).module
tokens = tokenizer(["DeepSpeed is a machine learning framework"], return_tensors="pt").to("cuda")
outputs = model.generate(**tokens, max_new_tokens=100, do_sample=False)
if rank == 0:
    print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
