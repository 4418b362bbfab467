"""Which jobs of the table run in every `make test`; of the others only the recordings are judged there."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from .faults import Case

# Each stands for a way to see a job.
LIVE = {
    "conditional_collective": "blocked in a collective",
    "subgroup_not_created_by_all": "blocked in the store",
    "p2p_recv_cycle": "blocked in a receive",
    "two_threads_one_group": "two threads of a rank in collectives",
    "swallowed_exception": "an exception that was caught",
    "slow_rank0_save": "asleep in Python",
    "lock_deadlock": "two threads that wait for each other",
    "regex_backtracking": "spinning in C",
    "dataloader_worker_stuck": "a stuck worker process",
    "sigstop": "stopped",
    "rendezvous_incomplete": "a rank that never registered",
    "shutdown_hang": "stuck on the way out",
    "straggler": "late, but alive",
    "size_mismatch": "SIGABRT of gloo",
    "unused_parameters": "an exception of DDP",
    "user_exception": "an exception",
    "exited_early": "an end without an error",
    "os__exit": "os._exit",
    "sigkill": "SIGKILL",
    "port_in_use": "no rendezvous",
    "restarted-hangs": "an attempt after another",
    "restarted-recovers": "a restart that helps",
    "own_timeout": "a limit of the job's own",
    "w0-frozen": "stopped within the backward pass",
    "w1-worker_dies": "a dead worker process",
    "w2-gen_dies": "a rank of another role that left",
    "w3-bad_batch-mitigate-barrier_in_except": "an exception whose handler waits",
    "w4-oom_rank0": "out of memory",
    "long_equal_pause": "all pause",
    "mild_straggler": "one is late",
    "wrapped_ring": "more calls than are kept",
    "uneven_with_join": "Join",
    "ends_while_polled": "the end while it is looked at",
    "ddp_with_workers": "DDP with workers",
    "w2": "several roles",
}


def params(cases: list[Case]) -> list[ParameterSet]:
    """For `parametrize`: those that are not live run with `-m whole`."""
    return [pytest.param(case, id=case.name, marks=() if case.name in LIVE else pytest.mark.whole) for case in cases]
