"""Runs a program with a short timeout for all process groups, and keeps flight-recorder dumps: how torch alone is made to speak.

    torchrun ... with_timeout.py SECONDS FOLDER PROGRAM ARGS...

gloo waits 30 minutes by itself and dumps nothing. A thread writes the rank's dump twice a second; the second newest file is from
before the end. In it the default group gets its name and the groups get their members, which gloo's dumps lack, and calls that
are done are called so: without that torchfrtrace reads no gloo dump. Programs with optimizers or DistributedDataParallel are
loaded as they are.
"""

import contextlib
import datetime
import os
import pickle
import runpy
import sys
import threading
import time
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed import distributed_c10d as c10d


def shorten(name: str, timeout: datetime.timedelta) -> None:
    """A function of torch.distributed gets another timeout, whatever the program says."""
    original = getattr(dist, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "timeout": timeout})

    for module in (dist, c10d):
        setattr(module, name, call)


def members() -> dict[str, dict[str, str]]:
    """The groups of this rank as NCCL's dumps tell them."""
    found = {}
    for group, name in c10d._world.pg_names.items():
        ranks = sorted(c10d._world.pg_group_ranks[group])
        found[name] = {"name": name, "desc": group.group_desc, "ranks": str(ranks)}
    return found


def write_dumps(folder: str) -> None:
    """For ever."""
    number = 0
    while True:
        time.sleep(0.4)
        if not dist.is_initialized():
            continue
        with contextlib.suppress(RuntimeError, KeyError, ValueError, AttributeError):
            content = pickle.loads(_dump_fr_trace())
            content["pg_config"] = members()
            for entry in content.get("entries", []):
                if entry.get("retired"):
                    entry["state"] = "completed"
            path = os.path.join(folder, f"{os.environ['RANK']}.{number}")
            with open(path + ".new", "wb") as file:
                pickle.dump(content, file)
            os.replace(path + ".new", path)
            number += 1


def main() -> None:
    seconds, folder, program = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    for name in ("init_process_group", "new_group"):
        shorten(name, datetime.timedelta(seconds=seconds))
    threading.Thread(target=write_dumps, args=(folder,), daemon=True).start()
    sys.argv = sys.argv[3:]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
