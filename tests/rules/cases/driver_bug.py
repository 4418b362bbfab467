"""The cases of driver-bug."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "driver-bug": (
        Fires(
            log_case(
                "NVRM: Xid (PCI:0000:b5:00): 119, pid=11, Timeout waiting for RPC from GSP! Expected function 76.\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "NVRM: Xid (PCI:0000:b5:00): 79, GPU has fallen off the bus.\n"
                "NVRM: Xid (PCI:0000:b5:00): 119, Timeout waiting for RPC from GSP!\n"
            ),
            "a device that is gone does not answer either",
        ),
    ),
}
