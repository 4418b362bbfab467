"""Failures of the start beside other failures: which of them comes first."""

from __future__ import annotations

import pytest

from unhang.read.logs.case import log_case
from unhang.rules.registry import judge

CONNECT = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a, 29500)."
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {rank}, for key: "
    "store_based_barrier_key:{key} (world_size={world}, worker_count={joined}, timeout=0:30:00)"
)
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds before timing out."
)
ORDINAL = "torch.AcceleratorError: CUDA error: invalid device ordinal"
NO_IPV6 = "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [localhost]:6001 (errno: 97 - Address family not supported by protocol)."
GONE = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
)


def traceback(rank: int, error: str) -> str:
    return "\n".join(
        f"[rank{rank}]: {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "/app/train.py", line 12, in main',
            "    start()",
            error,
        )
    )


def first(*lines: str) -> tuple[str, tuple[int, ...]]:
    """Cause and culprits of the first finding on a log."""
    findings = judge(log_case("\n".join(lines))).findings
    return (findings[0].cause, findings[0].culprit_ranks) if findings else ("unknown", ())


def causes(*lines: str) -> set[str]:
    return {f.cause for f in judge(log_case("\n".join(lines))).findings}


@pytest.mark.parametrize(
    ("lines", "cause", "ranks"),
    [
        ((traceback(0, TAKEN), traceback(1, CONNECT)), "port-in-use", (0,)),
        ((NO_IPV6, NO_IPV6, TAKEN), "port-in-use", ()),
        ((NO_IPV6, CONNECT), "rendezvous-endpoint", ()),
        ((traceback(0, "ValueError: unknown option"), traceback(1, CONNECT)), "user-exception", (0,)),
        ((traceback(4, ORDINAL), traceback(5, ORDINAL), WATCHDOG), "device-mapping", (4, 5)),
        ((BARRIER.format(rank=0, key=1, world=2, joined=1),), "rendezvous-incomplete", (1,)),
        ((BARRIER.format(rank=0, key=1, world=4, joined=8),), "stale-store", ()),
        ((BARRIER.format(rank=2, key=1, world=2, joined=4),), "launcher-misuse", (2,)),
    ],
)
def test_the_first_finding_is_where_it_began(lines: tuple[str, ...], cause: str, ranks: tuple[int, ...]) -> None:
    assert first(*lines) == (cause, ranks)


def test_no_ipv6_is_no_cause() -> None:
    assert causes(NO_IPV6, NO_IPV6) == set()


def test_a_port_that_a_side_service_wanted_is_not_why_a_job_hung_later() -> None:
    assert "port-in-use" not in causes("OSError: [Errno 98] Address already in use", WATCHDOG)


def test_a_group_made_later_is_less_sure_than_the_first_one() -> None:
    sure = {
        key: judge(log_case(BARRIER.format(rank=7, key=key, world=8, joined=4))).findings[0].confidence
        for key in (1, 32)
    }
    assert sure[32] < sure[1]


def test_ranks_beyond_the_world_count_only_in_the_first_group() -> None:
    assert "launcher-misuse" not in causes(BARRIER.format(rank=4330, key=522, world=2048, joined=1792))


def test_an_agent_that_loses_the_store_while_training_does_not_blame_the_endpoint() -> None:
    lines = ("    num_nodes_waiting = rdzv_handler.num_nodes_waiting()", GONE)
    assert "rendezvous-endpoint" not in causes(*lines)


def test_different_numbers_of_processes_per_node_are_told() -> None:
    waited = (
        "[W socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[node-a]:38674, remote=[::ffff:192.0.2.35]:23456) "
        "timed out after 900000ms"
    )
    frame = '  File "/opt/env/lib/python3.10/site-packages/torch/distributed/run.py", line 923, in <module>'
    findings = judge(log_case("\n".join(("  nproc_per_node   : 7", "  nproc_per_node   : 8", waited, frame)))).findings
    assert findings[0].cause == "rendezvous-incomplete"
    assert "7 and 8 processes" in findings[0].because


def test_a_launcher_that_names_the_port_is_quoted_with_its_line() -> None:
    finding = judge(log_case(f"starting\n{TAKEN}")).findings[0]
    assert "29500" in finding.title
    assert finding.evidence[0].line == 2
    assert any("29500" in (fix.command or "") for fix in finding.fixes)


def test_a_killed_process_explains_why_nobody_answers() -> None:
    killed = "E1120 api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 4242) of binary: /usr/bin/python"
    assert not causes(killed, CONNECT) & {"rendezvous-endpoint", "rendezvous-incomplete"}
