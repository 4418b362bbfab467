"""Makes the wanted faults ready in this process."""

from __future__ import annotations

import json
import os

from . import points, rank
from .armed import Armed
from .catalogue import FAULTS
from .imported import act_after_import

VARIABLE = "UNHANG_INJECT"


def make_ready() -> None:
    """Reads the wanted faults from the environment and hangs them onto torch's modules as they are imported."""
    wanted = json.loads(os.environ[VARIABLE])
    files = (wanted["events"], *([wanted["record"]] if wanted["record"] else []))
    for index, entry in enumerate(wanted["faults"]):
        fault = FAULTS[entry["name"]]
        fault.make_ready(Armed(fault, entry["values"], wanted["seed"], index, files))
    os.register_at_fork(after_in_child=rank.forked)
    act_after_import(
        {
            "torch.distributed": points.watch_distributed,
            "torch.optim.optimizer": points.watch_optimizers,
            "torch.utils.data.dataloader": points.watch_loaders,
            "torch.utils.data._utils.fetch": points.watch_fetchers,
            "torch.serialization": points.watch_files,
            "torch.nn.modules.module": points.watch_modules,
        }
    )
