"""AMD devices as amdsmi tells them. What a version of it does not tell is None.

Source: AMD SMI Python API reference.
"""

from __future__ import annotations

import importlib
from typing import Any

from unhang.check.devices.nvml import Fields

_MB = 1 << 20


class CannotRead(Exception):
    """There is no amdsmi, or no driver that it could ask."""


def load_amdsmi() -> Any:
    """The binding.

    Raises:
        CannotRead: it cannot be imported; without ROCm its import fails in other ways than by ImportError.
    """
    try:
        return importlib.import_module("amdsmi")
    except ImportError:
        raise CannotRead("amdsmi is not installed") from None
    except Exception as error:
        raise CannotRead(f"amdsmi cannot be loaded: {type(error).__name__}: {error}"[:200]) from error


def devices(amdsmi: Any) -> list[Fields]:
    """All devices, in the order of amdsmi."""
    amdsmi.amdsmi_init()
    try:
        return [_device(amdsmi, index, handle) for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
    finally:
        amdsmi.amdsmi_shut_down()


def _device(amdsmi: Any, index: int, handle: Any) -> Fields:
    def ask(name: str) -> Any:
        try:
            return getattr(amdsmi, name)(handle)
        except (AttributeError, amdsmi.AmdSmiException):
            return None

    memory = ask("amdsmi_get_gpu_vram_usage") or {}
    errors = ask("amdsmi_get_gpu_total_ecc_count") or {}
    fields: Fields = {
        "index": index,
        "uuid": ask("amdsmi_get_gpu_device_uuid"),
        "bus": ask("amdsmi_get_gpu_device_bdf"),
        "name": (ask("amdsmi_get_gpu_asic_info") or {}).get("market_name"),
        "ecc_uncorrected": errors.get("uncorrectable_count"),
        "memory_bytes": _bytes(memory.get("vram_total")),
        "used_bytes": _bytes(memory.get("vram_used")),
    }
    if fields["uuid"] is None:
        fields |= {"uuid": f"AMD-{fields['bus'] or index}"}
    return fields


def _bytes(megabytes: Any) -> int | None:
    return int(megabytes) * _MB if isinstance(megabytes, int) else None
