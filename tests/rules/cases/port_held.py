"""The cases of port-held."""

from __future__ import annotations

from typing import Any

from unhang.testing import Fires, Quiet, read, readings_case

_HELD: dict[str, Any] = {"pid": 4711, "command": "python train.py", "user": "ann", "age_s": 86_400, "listens": True}

CASES = {
    "port-held": (
        Fires(
            readings_case(
                read(
                    "network.port 29500",
                    role="MASTER_PORT",
                    is_free=False,
                    is_ours=False,
                    is_orphan=True,
                    rank_of_holder="3",
                    parent_pid=1,
                    started_ticks=7,
                    **_HELD,
                )
            ),
            (0,),
        ),
        Fires(readings_case(read("network.port 8500", role="asked", is_free=False, is_ours=False, listens=True)), (0,)),
        Quiet(readings_case(read("network.port 29500", role="MASTER_PORT", is_free=True, is_ours=False)), "it is free"),
        Quiet(
            readings_case(read("network.port 29500", role="MASTER_PORT", is_free=False, is_ours=True, **_HELD)),
            "the store of this very job",
        ),
    ),
}
