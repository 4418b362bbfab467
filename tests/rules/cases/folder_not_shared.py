"""The cases of folder-not-shared."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "folder-not-shared": (
        Fires(
            readings_case(
                read("machine.folder_shared /ckpt", sees=True, writer_rank=0),
                read("machine.folder_shared /ckpt", rank=2, sees=False, writer_rank=0),
            ),
            (2,),
        ),
        Quiet(
            readings_case([read("machine.folder_shared /ckpt", rank=r, sees=True, writer_rank=0) for r in range(4)]),
            "all see it",
        ),
    ),
}
