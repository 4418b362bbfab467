"""Starts the recorder in this process: everything is hung onto torch's modules as they are imported."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import announce, calls, compiler, errors_seen, phases, recording, settings, waiting
from .imports import act_after_import
from .recording import attempt

_C10D = "torch.distributed.distributed_c10d"
_MARK = "_unhang_recorder_installed"


def install() -> None:
    """Install once per process; without UNHANG_RUN_DIR nothing happens. Never raises.

    Forked children inherit the wrappers and become recorded ranks of their own when they call init_process_group.
    """
    if not os.environ.get("UNHANG_RUN_DIR") or hasattr(sys, _MARK):
        return
    # On `sys`, because this package may be loaded twice: by the bootstrap, and as unhang.recorder.
    setattr(sys, _MARK, True)
    os.register_at_fork(after_in_child=_after_fork)
    attempt("hooks", act_after_import, {_C10D: _watch_c10d, **phases.ACTIONS, **_OTHERS})


def _after_fork() -> None:
    attempt("fork", waiting.forget_in_child)
    attempt("fork", recording.forget_in_child)


def _watch_c10d(c10d: Any) -> None:
    bindings = sys.modules.get("torch._C._distributed_c10d")
    attempt("settings", settings.drop_old_names)
    attempt("announcing the rank", announce.announce_at_import)
    if bindings is None:
        recording.note("torch.distributed", "this torch was built without it")
        return
    attempt("calls", calls.watch, c10d)
    attempt("store waits", waiting.watch_store, bindings)
    attempt("completion of isend and irecv", waiting.watch_work, bindings)


_OTHERS = {
    "multiprocessing.process": errors_seen.watch_processes,
    "torch.multiprocessing.spawn": errors_seen.watch_spawn,
    "torch._dynamo.eval_frame": compiler.skip_our_frames,
}
