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
if object_name == "deepspeed_initialize":
    import deepspeed

    # Else it compiles a kernel for half a minute first.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
if object_name in ("install", "Training", "ray_train_loop"):  # the others make their own
    dist.init_process_group("gloo")
documented = getattr(importlib.import_module(module_name), object_name)
blocks = documented.__doc__.split("```python\n")[1:]
assert blocks, "no example"
for block in blocks:
    exec(textwrap.dedent(block.partition("```")[0]), {"unhang": unhang, "torch": torch, "dist": dist})
if dist.is_initialized():
    dist.destroy_process_group()
print("THE END", flush=True)
