"""The end of the process groups: always, in the order that cannot hang, and never for longer than a limit."""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
from contextlib import suppress
from typing import Any

from unhang.guard.telling import tell

LAST_RESORT_S = 20.0


def release_wrapped_models() -> int:
    """Drops the reducers of all DDP modules, which hold the process groups: destroyed later, they may wait for ever.

    Returns how many there were. Their modules keep parameters and buffers, and can be saved; they cannot train any more.
    """
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None:
        return 0
    # Not isinstance: it asks objects for their __class__, and some answer with a warning or an import.
    found = [o for o in gc.get_objects() if issubclass(type(o), module.DistributedDataParallel)]
    for wrapped in found:
        for name in ("reducer", "logger", "_delay_all_reduce_params"):
            with suppress(Exception):
                wrapped.__dict__.pop(name, None)
    return len(found)


def destroy(limit_s: float) -> bool:
    """Destroys all process groups; returns whether they are gone within the limit. Blocks up to `limit_s`.

    Should the interpreter itself stand still in it (a thread of gloo waiting for the lock that this one holds), the process
    is ended after LAST_RESORT_S more, with a stack on stderr.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return True
    release_wrapped_models()
    gc.collect()
    gone = threading.Event()

    def work() -> None:
        with suppress(Exception):
            dist.destroy_process_group()
        gone.set()

    with suppress(Exception):
        faulthandler.dump_traceback_later(limit_s + LAST_RESORT_S, exit=True)
    try:
        threading.Thread(target=work, name="unhang-destroy", daemon=True).start()
        if not gone.wait(limit_s):
            tell("unhang", f"destroy_process_group did not come back within {limit_s:.0f} s; it is left behind")
        return gone.is_set()
    finally:
        faulthandler.cancel_dump_traceback_later()
