"""Variables that stand against each other, and those that another one leaves without effect."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.analyze.env_finding import opinion, without
from unhang.analyze.env_values import is_off, is_on, number
from unhang.model import Finding
from unhang.read.environment.settings import Assignment, Settings

AGAINST, USELESS = "env-contradiction", "env-without-effect"
_IB_SETTINGS = (
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM",
)  # fmt: skip
MOST_SOCKETS = 64


def judge_together(s: Settings) -> Iterator[Finding]:
    """Findings on pairs of variables of one source."""
    yield from _blocking(s)
    yield from _switched_off(s)
    yield from _recorder(s)
    yield from _debug(s)
    yield from _limits(s)


def _either(s: Settings, *names: str) -> Assignment | None:
    return next((a for n in names if (a := s.last(n)) is not None), None)


def _blocking(s: Settings) -> Iterator[Finding]:
    wait = _either(s, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = _either(s, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    desync = _either(s, "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
    if wait is not None and is_on(wait) and handling is not None and is_on(handling):
        title = f"{wait.name}=1 and {handling.name}={handling.value} exclude each other: only the blocking wait counts"
        because = "torch switches asynchronous error handling off when the blocking wait is on. They are two ways to notice a timeout; the second is the default."
        yield opinion(s, (wait, handling), AGAINST, 0.92, title, because)
    if desync is None or not is_on(desync):
        return
    reason = None
    if wait is not None and is_on(wait):
        reason = wait
    elif handling is not None and handling.value is not None and number(handling.value) == 0:
        reason = handling
    if reason is not None:
        title = f"{desync.name}=1 has no effect beside {reason.name}={reason.value}"
        because = "The report on ranks that are behind is made by the asynchronous error handling, which is off."
        yield opinion(s, (desync, reason), USELESS, 0.9, title, because, (without(s, reason),))


def _switched_off(s: Settings) -> Iterator[Finding]:
    off, level = s.last("NCCL_P2P_DISABLE"), s.last("NCCL_P2P_LEVEL")
    if off is not None and is_on(off) and level is not None:
        title = f"NCCL_P2P_LEVEL={level.value or level.expression} has no effect beside NCCL_P2P_DISABLE=1"
        because = "One says how far direct traffic may reach, the other that there is none. NCCL_P2P_LEVEL=LOC alone says the same as NCCL_P2P_DISABLE=1."
        yield opinion(s, (off, level), AGAINST, 0.9, title, because)
    no_ib = s.last("NCCL_IB_DISABLE")
    idle = tuple(a for n in _IB_SETTINGS if (a := s.last(n)) is not None)
    if no_ib is not None and is_on(no_ib) and idle:
        names = ", ".join(a.name for a in idle)
        title = f"{names}: no effect beside NCCL_IB_DISABLE=1"
        because = "They tune InfiniBand and RoCE, which NCCL_IB_DISABLE=1 takes out of use."
        yield opinion(s, (*idle, no_ib), USELESS, 0.9, title, because, (without(s, no_ib), without(s, idle[0])))
    monitor, heartbeat = s.last("TORCH_NCCL_ENABLE_MONITORING"), s.last("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    if monitor is not None and is_off(monitor) and heartbeat is not None:
        title = f"{heartbeat.name}={heartbeat.value} has no effect beside {monitor.name}={monitor.value}"
        yield opinion(s, (heartbeat, monitor), USELESS, 0.9, title, "The monitor whose limit it is does not run.")
    out_of_band, interface = s.last("NCCL_OOB_NET_ENABLE"), s.last("NCCL_OOB_NET_IFNAME")
    if interface is not None and (is_off(out_of_band) or (s.is_live and out_of_band is None)):
        title = f"{interface.name} has no effect without NCCL_OOB_NET_ENABLE=1"
        yield opinion(s, (interface,), USELESS, 0.85, title, "Start-up traffic goes over sockets unless that is on.")


def _recorder(s: Settings) -> Iterator[Finding]:
    size = _either(s, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    dump = s.last("TORCH_NCCL_DUMP_ON_TIMEOUT")
    if size is not None and (size.value or "").strip() == "0" and is_on(dump) and dump is not None:
        title = f"{dump.name}={dump.value} has no effect beside {size.name}=0"
        yield opinion(
            s,
            (dump, size),
            USELESS,
            0.9,
            title,
            "There is nothing to dump: the flight recorder is off.",
            (without(s, size),),
        )
    old, new = s.last("TORCH_NCCL_TRACE_BUFFER_SIZE"), s.last("TORCH_FR_BUFFER_SIZE")
    if old and new and None not in (old.value, new.value) and old.value != new.value:
        title = f"TORCH_FR_BUFFER_SIZE={new.value} and TORCH_NCCL_TRACE_BUFFER_SIZE={old.value} are one setting with two values"
        because = "Newer torch takes the first, older torch the second; parts of newer torch still look at the second."
        yield opinion(s, (new, old), AGAINST, 0.8, title, because)


def _debug(s: Settings) -> Iterator[Finding]:
    level = s.last("NCCL_DEBUG")
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        detail = s.last(name)
        if detail is None or (level is not None and level.value is None):
            continue
        quiet = level is not None and (level.value or "").strip().upper() in ("VERSION", "WARN", "NONE")
        if quiet and name == "NCCL_DEBUG_SUBSYS" and level is not None:
            title = f"{name}={detail.value} has no effect beside NCCL_DEBUG={level.value}"
            yield opinion(s, (detail, level), USELESS, 0.85, title, "It chooses among the lines of NCCL_DEBUG=INFO.")
        elif level is None and s.is_live:
            title = f"{name}={detail.value} has no effect without NCCL_DEBUG"
            yield opinion(s, (detail,), USELESS, 0.85, title, "NCCL prints nothing unless NCCL_DEBUG is set.")


def _limits(s: Settings) -> Iterator[Finding]:
    threads, sockets = s.last("NCCL_SOCKET_NTHREADS"), s.last("NCCL_NSOCKS_PERTHREAD")
    if threads and sockets:
        product = (number(threads.value or "") or 0) * (number(sockets.value or "") or 0)
        if product > MOST_SOCKETS:
            title = f"NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD = {product}: at most {MOST_SOCKETS}"
            yield opinion(s, (threads, sockets), AGAINST, 0.9, title, "NCCL has no more sockets for one connection.")
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        least, most = s.last(low), s.last(high)
        a, b = number((least.value if least else "") or ""), number((most.value if most else "") or "")
        if least and most and a is not None and b is not None and a > b:
            title = f"{low}={a} is more than {high}={b}"
            yield opinion(s, (least, most), AGAINST, 0.9, title, "There is no number of channels that is both.")
