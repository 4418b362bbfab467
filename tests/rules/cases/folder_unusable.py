"""The cases of folder-unusable."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "folder-unusable": (
        Fires(
            readings_case(
                read(
                    "machine.folder /ckpt",
                    role="named",
                    exists=True,
                    is_writable=True,
                    free_bytes=0,
                    size_bytes=1 << 40,
                )
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.folder /ckpt", rank=2, role="named", exists=True, is_read_only=True, free_bytes=1 << 40)
            ),
            (2,),
        ),
        Fires(readings_case(read("machine.folder /etc/hosts", role="named", problem="Not a directory")), (0,)),
        Quiet(
            readings_case(
                read("machine.folder /work", role="current", exists=True, is_read_only=True, free_bytes=0, size_bytes=0)
            ),
            "code in an image that cannot be written",
        ),
        Quiet(
            readings_case(
                read(
                    "machine.folder /ckpt",
                    role="named",
                    exists=True,
                    is_writable=True,
                    free_bytes=1 << 40,
                    size_bytes=1 << 41,
                )
            ),
            "room enough",
        ),
    ),
}
