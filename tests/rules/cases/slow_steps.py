"""The cases of slow-steps."""

from __future__ import annotations

from collections.abc import Sequence

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_TIMEOUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600050 milliseconds\n"
)


_CORES = "CPU(s):                               368\n"
_LOAD = "top - 17:19:44 up 9 days,  4:02,  3 users,  load average: {}.12, 177.50, 102.77\n"
_STEPS = "".join(f"step:  {n}  loss: 0.0{n}2  step_time: 115.7s\n" for n in range(1, 5))


def _meters(step_s: float, data_s: float, count: int = 8) -> str:
    return "".join(
        f"Epoch: [0][{i * 10}/5005]\tTime {step_s:.3f} ({step_s:.3f})\tData {data_s:.3f} ({data_s:.3f})\tLoss 2.{9 - i}\n"
        for i in range(count)
    )


def _bar(seconds: Sequence[float], steps: int = 10) -> str:
    """A bar that is drawn every `steps` steps, which take so long each."""
    text, elapsed = "", 0.0
    for i, step_s in enumerate(seconds, 1):
        elapsed += step_s * steps
        minutes, second = divmod(round(elapsed), 60)
        text += f"{i:3}%|#         | {i * steps}/10000 [{minutes:02}:{second:02}<9:00:00, 1.00s/it]\n"
    return text


_REFUSED = "node-a:950:3125 [0] nccl_net_ofi_create_plugin:1067 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
_SET = "node-a:950:3125 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
_NONE = "node-a:950:3125 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
_BETWEEN = "node-a:950:3125 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0\n"
_TOLD = "[rank 0] WARNING: mean step 5.72 s over 50 steps is 2.28 x the baseline 2.51 s\n"


def _bar_at(rate: str) -> str:
    return "".join(f"Epoch 0: {n}%|#   | {n}/100 [0{n}:00<50:00, {rate}]\n" for n in range(1, 6))


def _passes(first_s: float, data_s: float, usual_s: float = 33.2) -> str:
    """Two passes over the data, of which each line tells how long a step took, and until when it had its batch."""
    return "".join(
        f"[TRAIN] E{epoch:03} I{i * 100:05} | time(b/d)={step:.3f}/{data:.3f}s | loss: G=1.2\n"
        for epoch in range(2)
        for i, (step, data) in enumerate([(first_s, data_s), *[(usual_s, usual_s - 0.3)] * 6])
    )


def _profile(kernel: str, calls_ms: float, all_ms: float) -> str:
    """The end of a table of torch's profiler, with one kernel of a collective among the rows."""
    rows = (("aten::mm", "210.100ms", f"{all_ms - calls_ms:.3f}ms"), (kernel, "0.000us", f"{calls_ms:.3f}ms"))
    table = "".join(f"{name:>60}  {cpu:>12}  {device:>12}  {'9.100ms':>12}  {30:>12}\n" for name, cpu, device in rows)
    head = f"{'Name':>60}     CPU total    CUDA total  CUDA time avg    # of Calls\n"
    return f"{head}{table}Self CPU time total: 2.1s\nSelf CUDA time total: {all_ms:.3f}ms\n"


_OF_RUNS = "$ bash {}.sh\n"
_PASS = 1000  # steps


def _run(step_s: float, last: int, name: str = "a") -> str:
    """A run with a bar of so many steps, up to one of them."""
    lines = (
        f"{n / 10:.0f}%|#  | {n}/{_PASS} [{_clock(n * step_s)}<1:00:00, {step_s:.2f}s/it]\n" for n in range(1, last + 1)
    )
    return _OF_RUNS.format(name) + "".join(lines)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


CASES = {
    "slow-steps": (
        Fires(log_case(_meters(33.1, 32.8)), ()),
        Fires(log_case(_profile("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelAr..", 812.4, 1100.0)), ()),
        Fires(log_case(_profile("ncclKernel_Broadcast_TREE_LL_Sum_int8_t", 3100.0, 4000.0)), ()),
        Fires(log_case(_run(41.0, 9) + "^C\n" + _run(1.1, 30, "b")), ()),
        Fires(log_case(_run(0.9, 30) + _run(25.0, 12, "b")), ()),
        Fires(log_case(_bar([0.3] * 20 + [9.0] * 6)), ()),
        Quiet(log_case(_meters(33.1, 0.02)), "a loader that keeps up"),
        Quiet(log_case(_meters(0.031, 0.028)), "fast steps"),
        Quiet(log_case(_meters(33.1, 32.8, count=1) + _meters(0.9, 0.01)), "a first step that is slow"),
        Fires(log_case(_passes(654.9, 630.8)), ()),
        Quiet(log_case(_passes(654.9, 1.2)), "a first step that compiles"),
        Quiet(log_case(_bar(([0.3] * 10 + [9.0]) * 3)), "a slow step now and then"),
        Quiet(log_case(_meters(33.1, 32.8) + _TIMEOUT), "a job that hangs"),
        Fires(log_case(_CORES + _STEPS + _LOAD.format(1934)), ()),
        Fires(log_case(_CORES + _bar([4.5] * 20) + _LOAD.format(1934)), ()),
        Quiet(log_case(_CORES + _STEPS + _LOAD.format(412)), "a busy machine"),
        Quiet(log_case("n0: " + _CORES + "n1: " + _LOAD.format(1934) + _STEPS), "the load of another machine"),
        Fires(log_case(_REFUSED + _BETWEEN + _bar_at("0.03it/s")), (), cause="slow-steps"),
        Quiet(log_case(_REFUSED + _bar_at("0.03it/s")), "one node: nothing goes through sockets"),
        Fires(log_case(_SET + _BETWEEN + _bar_at("5.70s/it") + _TOLD), (), cause="misconfigured-env"),
        Fires(log_case(_NONE + _BETWEEN + _bar_at("58.0s/it") + _TOLD), (), cause="slow-steps"),
        Quiet(log_case(_SET + _BETWEEN + _bar_at("33.0s/it")), "a setting, and steps as usual"),
        Quiet(
            log_case(_profile("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 212.4, 1100.0)),
            "a profile of work on the device",
        ),
        Quiet(log_case(_profile("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 91.4, 110.0)), "a short look at one call"),
        Quiet(
            log_case(_run(25.0, _PASS) + _run(0.9, 30)),
            "a first pass that fills a cache and comes to its end",
        ),
        Quiet(log_case(_run(25.0, 30) + "^C\n" + _run(24.0, 30, "b")), "the same pace in both runs"),
    ),
}
