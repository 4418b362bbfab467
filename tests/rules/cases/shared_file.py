"""The cases of shared-file."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_RENAME = "FileNotFoundError: [Errno 2] No such file or directory: '/run/tmp.pth.tar' -> '/run/last.pth.tar'"

_INDEX = "FileNotFoundError: [Errno 2] No such file or directory: '/data/index-cache/43d5bc14_doc_idx.npy'"

_ROTATING = "Deleting older checkpoint [/shared/out/checkpoint-9] due to args.save_total_limit"

CASES = {
    "shared-file": (
        Fires(log_case(_RENAME), ()),
        Fires(log_case(f"[rank0]: Traceback (most recent call last):\n[rank0]: {_RENAME}"), (0,)),
        Fires(log_case(f"c000001: {_INDEX}"), ()),
        Fires(
            log_case(
                f"{_ROTATING}\n{_ROTATING}\nFileNotFoundError: [Errno 2] No such file or directory: '/shared/out/checkpoint-9/optimizer.pt'"
            ),
            (),
        ),
        Quiet(log_case("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'"), "a wrong path"),
        Quiet(log_case(f"{_ROTATING}\nstep 20 loss 1.2"), "a rotation that went well"),
    ),
}
