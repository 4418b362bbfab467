"""Which backend the collectives of a check use, and on which device this rank runs them."""

from __future__ import annotations

from unhang.preflight.context import Context


def backend_and_device(context: Context, area: str) -> tuple[str, str]:
    """The backend that was asked for; else nccl where torch sees a device on every rank, else gloo. All ranks call it.

    Blocks: up to 60 seconds, for a rank that imports torch.
    """
    asked = context.options.backend
    if not asked:
        seen = context.party.exchange(f"{area}/devices", _count(), 60.0)
        asked = "nccl" if seen and all(seen.values()) else "gloo"
    if asked == "gloo":
        return "gloo", "cpu"
    return asked, f"cuda:{context.member.local_rank % max(1, _count())}"


def _count() -> int:
    """Devices that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count())
