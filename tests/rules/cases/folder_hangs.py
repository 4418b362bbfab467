"""The cases of folder-hangs."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "folder-hangs": (
        Fires(
            readings_case(
                read("machine.folder /data", role="named", hangs=True, problem="no answer within 2 s"),
                read("machine.folder /data", rank=2, role="named", exists=True, is_writable=True, free_bytes=1 << 40),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.folder /data", role="named", exists=True, is_writable=True, free_bytes=1 << 40)
            ),
            "it answers",
        ),
    ),
}
