"""What the driver's error numbers (Xid) mean, and which of them accuse the device.

Source: NVIDIA, Xid catalogue.
"""

from __future__ import annotations

from typing import NamedTuple

APPLICATION, HARDWARE, BUS, LINK, FIRMWARE, FOLLOWS = "application", "hardware", "bus", "link", "firmware", "follows"


class Xid(NamedTuple):
    """One error number. `weight`: how sure it is that the device, and not the program, is at fault; 0 for the program's."""

    meaning: str
    kind: str
    weight: float = 0.0


XIDS = {
    8: Xid("the device stopped processing", APPLICATION),
    13: Xid("exception of the graphics engine: an illegal access or instruction of a kernel", APPLICATION),
    31: Xid("memory page fault of a kernel", APPLICATION),
    32: Xid("corrupted push buffer: driver, bus or memory of the host", BUS),
    38: Xid("driver firmware error", FIRMWARE),
    43: Xid("the device stopped processing after an error of the program", APPLICATION),
    45: Xid("clean-up after an earlier error", FOLLOWS),
    48: Xid("uncorrectable (double bit) ECC error", HARDWARE, 0.95),
    61: Xid("breakpoint of the internal micro-controller", FIRMWARE, 0.7),
    62: Xid("the internal micro-controller halted", HARDWARE, 0.75),
    63: Xid("a row of memory was marked for remapping", HARDWARE, 0.6),
    64: Xid("remapping of a row of memory failed", HARDWARE, 0.93),
    74: Xid("error of an NVLink", LINK, 0.88),
    79: Xid("the device has fallen off the bus", BUS, 0.96),
    92: Xid("high rate of single bit ECC errors", HARDWARE, 0.7),
    94: Xid("contained uncorrectable memory error", HARDWARE, 0.93),
    95: Xid("uncontained uncorrectable memory error", HARDWARE, 0.95),
    109: Xid("time limit of a context switch", FOLLOWS),
    119: Xid("the device's system processor (GSP) does not answer the driver", FIRMWARE, 0.82),
    120: Xid("error of the device's system processor (GSP)", FIRMWARE, 0.82),
    121: Xid("error of the chip-to-chip link", LINK, 0.75),
    136: Xid("error of an NVLink", LINK, 0.8),
    140: Xid("unrecovered ECC error", HARDWARE, 0.93),
    145: Xid("error of an NVLink", LINK, 0.85),
    149: Xid("error of an NVLink", LINK, 0.8),
    154: Xid("the recovery that the device needs", FOLLOWS),
    155: Xid("an NVLink could not be trained", LINK, 0.8),
}
DEFECTS = frozenset({HARDWARE, BUS, LINK})


def accuses_device(code: int | None) -> bool:
    """Whether a number says that device, link or bus are at fault."""
    known = XIDS.get(code) if code is not None else None
    return known is not None and known.weight > 0 and (known.kind in DEFECTS or code == 61)


def accuses_firmware(code: int | None) -> bool:
    """Whether a number is about the device's system processor."""
    return code in (119, 120)
