"""The cases of ras-lags and ras-missing: answers of `ncclras`, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_ROW = "    0  {comms:8}  {nodes:8}         4  {size:8}  {ranks:8}   RUNNING  {state:>6}\n"


def report(state: str, errors: str = "", warnings: str = "", size: int = 8, ranks: int = 8, gpus: int = 8) -> str:
    """A report on one communicator of a job with so many GPUs."""
    return (
        "NCCL version 2.29.2 compiled with CUDA 13.0\nCUDA runtime version 13000, driver version 13000\n\n"
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        f"      2          4            1          {gpus}        {gpus}\n\nCommunicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        + _ROW.format(comms=1, nodes=2, size=size, ranks=ranks, state=state)
        + f"\nErrors\n======\n\n{errors}\nWarnings\n========\n\n{warnings}"
    )


def at(member: int, launched: str = "") -> str:
    """A line on one rank."""
    return f"  Rank {member}{launched} -- GPU {member % 4} managed by process {4000 + member} on node 10.2.0.{member // 4}\n"


def counts(*shares: str, operation: str = "AllReduce", group: str = "#0-0 (5be1c0a9d2f34417)") -> str:
    """A mismatch of operation counts."""
    return f"{group} MISMATCH\n  Communicator ranks have different {operation} operation counts\n{''.join(shares)}\n"


def behind(launched: int = 83, most: int = 88, member: int = 5) -> str:
    """Seven ranks, and one that is behind."""
    one = at(member, f" has launched up to operation {launched}")
    return report("MISMATCH", warnings=counts(f"  7 ranks have launched up to operation {most}\n", one))


INCOMPLETE = (
    "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 4006 on node 10.2.0.1 managing GPU 2\n\n"
    "#0-0 (5be1c0a9d2f34417) INCOMPLETE\n  Missing communicator data from 1 rank\n"
)
DEAD = INCOMPLETE.replace(
    "INCOMPLETE\n  Missing communicator data from 1 job process\n",
    "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n",
    1,
)
OLD = "  The missing rank: 6\n"
UNRESPONSIVE = report("INCOMPLETE", INCOMPLETE + at(6), ranks=7)
HALF = counts("  4 ranks have launched up to operation 88\n", "  4 ranks have launched up to operation 83\n")
FEW = counts(
    "  6 ranks have launched up to operation 88\n", "  2 ranks have launched up to operation 83\n", at(1), at(5)
)
UNLISTED = counts("  5 ranks have launched up to operation 88\n", "  3 ranks have launched up to operation 83\n")
OTHER = counts(
    "  7 ranks have launched up to operation 9\n",
    at(2, " has not launched any operations"),
    operation="Broadcast",
)


def communicator(launched: Mapping[int, int], missing: Mapping[int, bool], name: str = "0x5be1c0a9d2f34417") -> object:
    """A communicator in JSON. `missing`: whether it is considered dead."""

    def process(member: int) -> dict[str, object]:
        place: dict[str, object] = {"rank": member, "host": f"10.2.0.{member // 4}", "pid": 4000 + member}
        return {**place, "cuda_dev": member % 4, "nvml_dev": member % 4}

    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "hash": name,
        "secondary_hash": "0x1:0x2",
        "size": len(launched) + len(missing),
        "ranks_count": len(launched),
        "missing_ranks_count": len(missing),
        "ranks": [
            {**process(m), "status": status, "collective_counts": {"Broadcast": 0, "AllReduce": n}}
            for m, n in launched.items()
        ],
        "missing_ranks": [
            {**process(m), "status": {"unresponsive": True, "considered_dead": dead}} for m, dead in missing.items()
        ],
    }


def as_json(*communicators: object) -> str:
    """The same report in JSON."""
    head = {"nccl_version": "2.29.2", "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    found = {**head, "timestamp": "2026-03-02 10:00:00", "communicators_count": len(communicators)}
    found |= {"communicators": list(communicators), "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}
    return json.dumps(found, indent=2)


def equal(ranks: Sequence[int], most: int = 88, **others: int) -> dict[int, int]:
    """The count of each rank; `r3=5` for another one."""
    return {rank: others.get(f"r{rank}", most) for rank in ranks}


LAGS_JSON = as_json(communicator(equal(range(8), r5=83), {}))
GONE_JSON = as_json(communicator(equal(range(7)), {7: True}))
NO_COMMA = GONE_JSON.replace(
    '"nvml_dev": 3,\n          "status": {\n            "unresponsive"',
    '"nvml_dev": 3\n          "status": {\n            "unresponsive"',
)
CUT = as_json(communicator(equal(range(8), r5=83), {}), communicator(equal([1, 5], r5=7), {}, "0x2"))[:-600]
TIMED_OUT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, "
    "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
)

CASES = {
    "ras-lags": (
        Fires(log_case(behind()), (5,)),
        Fires(log_case(behind(87) + behind(87)), (5,)),
        Fires(log_case(behind(83, 84) + behind(83, 90)), (5,)),
        Fires(log_case(report("MISMATCH", warnings=FEW)), (1, 5)),
        Fires(log_case(report("MISMATCH", warnings=FEW, gpus=16)), ()),
        Fires(log_case(LAGS_JSON), (5,)),
        Fires(
            log_case(as_json(communicator(equal(range(8), r5=83), {}), communicator(equal([1, 5], r5=7), {}, "0x2"))),
            (5,),
        ),
        Fires(log_case(TIMED_OUT + behind(87)), (5,)),
        Quiet(log_case(report("OK")), "all counts agree"),
        Quiet(log_case(as_json(communicator(equal(range(8)), {}))), "all counts agree"),
        Quiet(log_case(behind(87)), "one operation, in one report: so a running job looks at any moment"),
        Quiet(log_case(behind(70, 88) + behind(83, 95)), "it moved between two reports"),
        Quiet(log_case(behind() + report("OK")), "it moved between two reports"),
        Quiet(log_case(report("MISMATCH", warnings=HALF)), "half of the ranks: either half may be the odd one"),
        Quiet(log_case(report("MISMATCH", warnings=UNLISTED)), "those behind are not listed"),
        Quiet(
            log_case(as_json(communicator(equal(range(8), r5=83), {}), communicator(equal([1, 5], r1=7), {}, "0x2"))),
            "other ranks are behind in another communicator",
        ),
        Quiet(log_case(report("MISMATCH", warnings=FEW + OTHER)), "other ranks are behind in another communicator"),
        Quiet(log_case(report("MISMATCH", warnings=FEW)[:-90]), "those behind are not listed"),
        Quiet(log_case(CUT), "other ranks may be behind in what is cut off"),
        Quiet(log_case(LAGS_JSON[:300] + "oops"), "no JSON, and no report"),
        Quiet(
            log_case(as_json(communicator(equal(range(7), r5=83), {7: False}))),
            "a process is missing: its peers wait for it",
        ),
    ),
    "ras-missing": (
        Fires(log_case(UNRESPONSIVE), (6,)),
        Fires(log_case(report("INCOMPLETE", INCOMPLETE + OLD, ranks=7)), (6,)),
        Fires(log_case(report("INCOMPLETE", DEAD + at(6), ranks=7)), (6,)),
        Fires(log_case(GONE_JSON), (7,)),
        Fires(log_case(NO_COMMA), (7,)),
        Fires(log_case(as_json(communicator({0: 88}, {1: False}))), ()),
        Quiet(log_case(report("OK")), "everybody answers"),
        Quiet(log_case(as_json()), "no communicator yet"),
        Quiet(log_case(behind()), "everybody answers"),
        Quiet(log_case(UNRESPONSIVE + report("OK")), "it answers again in the last report"),
    ),
}
