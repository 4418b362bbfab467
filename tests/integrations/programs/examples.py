"""Runs the examples in one docstring, in a process group of one or two ranks unless the framework makes it."""

import importlib
import os
import sys
import textwrap

import torch
import torch.distributed as dist

import unhang

module_name, object_name = sys.argv[1:3]
for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
    assert os.environ[name]
if module_name.endswith("deepspeed"):
    import deepspeed

    # Else it compiles a kernel for half a minute first.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
makes_its_own = module_name.rpartition(".")[2] in ("lightning", "transformers", "accelerate", "deepspeed")
if not makes_its_own:
    dist.init_process_group("gloo")
documented = getattr(importlib.import_module(module_name), object_name)
if object_name == "install":
    unhang.install = documented
blocks = documented.__doc__.split("```python\n")[1:]
assert blocks, "no example"
for block in blocks:
    exec(textwrap.dedent(block.partition("```")[0]), {"unhang": unhang, "torch": torch, "dist": dist})
if dist.is_initialized():
    dist.destroy_process_group()
print("THE END", flush=True)
