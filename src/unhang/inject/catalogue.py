"""All faults by name."""

from __future__ import annotations

from . import collectives, data, files, network, ordering, process, results, timing

FAMILIES = (collectives, ordering, data, process, files, network, timing, results)
FAULTS = {fault.name: fault for family in FAMILIES for fault in family.FAULTS}
