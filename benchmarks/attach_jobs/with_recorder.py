"""Runs a program beside torch's own worker server, at the socket that TORCH_WORKER_SERVER_SOCKET names: its flight recorder can be asked."""

import runpy
import sys
from pathlib import Path

from torch.distributed.elastic.control_plane import worker_main

sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
with worker_main():
    runpy.run_path(sys.argv[0], run_name="__main__")
