"""Ends in a hang, or in order, as under a torch whose flight recorder keeps none of gloo's calls (2.7 and older): argument `alone`, `transfers` or `well`."""

import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
flight = sys.modules.get("_unhang_inside.recorder.flight")
if flight is not None:
    nothing = pickle.dumps({"version": "2.1", "pg_config": {}, "entries": []})
    flight._keeps_gloo = lambda: False
    flight._binding = lambda *names: None if "json" in names[0] else lambda: nothing
    for server in Path(os.environ["UNHANG_RUN_DIR"]).glob(f"ranks/*-{os.getpid()}/fr.sock"):
        server.unlink()
rank, what = dist.get_rank(), sys.argv[1]
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if what == "transfers" and rank < 2:
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)
if what == "alone" and rank == 0:
    dist.broadcast(torch.ones(2), src=0)  # culprit
if what == "transfers" and dist.get_rank() == 2:
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
