"""The cases of gpu-hardware."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "gpu-hardware": (
        Fires(log_case("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"), (1,)),
        Fires(
            log_case("[131.2] NVRM: Xid (PCI:0000:44:00): 79, pid=9, GPU has fallen off the bus.\n"),
            (),
        ),
        Fires(
            log_case(
                "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n"
                "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n"
            ),
            (),
        ),
        Quiet(
            log_case("NVRM: Xid (PCI:0000:44:00): 31, pid=9, Ch 00000010, MMU Fault: ENGINE GRAPHICS\n"),
            "a page fault is the program's",
        ),
        Fires(
            log_case(
                "NVRM: Xid (PCI:0000:dc:00): 45, pid=18189, name=python3, Ch 00000001 caused by previous Xid 149\n"
            ),
            (),
        ),
        Quiet(
            log_case("NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)\n"),
            "a link error that was corrected",
        ),
        Quiet(
            log_case(
                "NVRM: Xid (PCI:0000:10:1c): 63, pid=9, Row Remapper: New row marked for remapping\nstep 3 loss 0.1\n"
            ),
            "a row that is repaired at the next reset",
        ),
        Quiet(
            log_case("pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n"),
            "corrected errors of the bus alone",
        ),
    ),
}
