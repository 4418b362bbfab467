"""A module goes from the environment while the job runs. `failing`: the job needs it afterwards."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    library = Path(torch.__file__).parents[1]
    dist.all_reduce(torch.zeros(1))
    time.sleep(2)  # the watcher has seen the folder as it was
    if dist.get_rank() == 0:
        (library / "needed_later.py").unlink()
    time.sleep(8)
    dist.barrier()
    if "failing" in sys.argv and dist.get_rank() == 0:
        import needed_later  # type: ignore[import-not-found]  # noqa: F401
    dist.destroy_process_group()


main()
