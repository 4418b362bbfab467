"""The cases of folder-slow."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "folder-slow": (
        Fires(
            readings_case(
                read(
                    "machine.folder /ckpt", role="named", exists=True, is_writable=True, write_mb_per_s=3.1, type="nfs4"
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.folder /ckpt", role="named", exists=True, is_writable=True, write_mb_per_s=140.0)
            ),
            "an ordinary disk",
        ),
    ),
}
