"""The cases of late-in-a-phase."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet


def _steps(count: int, data: tuple[int, ...], backward: tuple[int, ...], every: int = 1, also: str = "") -> str:
    """Steps of three ranks with their phases in ms; rank 2 is as rank 0 in all but each so many-th step."""
    lines = []
    for step in range(count):
        for rank in range(3):
            of = rank if step % every == 0 else 0
            times = f"data {data[of] + step}.5 ms | forward 17.0 ms | backward {backward[of] + step % 3}.0 ms"
            lines.append(f"[rank {rank}] step {step}/100 loss 2.{step} | {times}{also}\n")
    return "".join(lines)


_LATE, _SHORT = (10, 11, 200), (320, 318, 130)

CASES = {
    "late-in-a-phase": (
        Fires(log_case(_steps(8, _LATE, _SHORT)), (2,)),
        Fires(
            log_case(
                "".join(
                    f"[R{r}] it {i}: load_time=0.{90 if r == 1 else 11}{i} comm=0.{10 if r == 1 else 88}{i}s\n"
                    for i in range(9)
                    for r in range(2)
                )
            ),
            (1,),
        ),
        Quiet(log_case(_steps(8, (10, 11, 12), (320, 318, 321))), "all take as long"),
        Quiet(log_case(_steps(4, _LATE, _SHORT)), "the first step warms up"),
        Quiet(log_case(_steps(5, _LATE, _SHORT)), "four steps behind it are too few"),
        Quiet(log_case(_steps(12, _LATE, _SHORT, every=4)), "it is slow now and then"),
        Quiet(log_case(_steps(8, _LATE, (320, 318, 321))), "nobody waits for it: the others are as fast in all else"),
        Quiet(log_case(_steps(8, _LATE, _SHORT, also=" pp_rank 0")), "stages of a pipeline have unlike work"),
        Quiet(
            log_case(
                _steps(8, _LATE, _SHORT)
                + "[rank0]:[E101 10:00:00.0 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=90, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
            ),
            "a job that hangs",
        ),
    ),
}
