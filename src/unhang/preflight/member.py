"""Which rank of which job this process is, and where the ranks of the job meet."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from unhang.guard.identity import LOCAL_RANK, RANK, WORLD_SIZE, number_from

LOCAL_WORLD_SIZE = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
NODES = ("GROUP_WORLD_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_FIRST_PORT, _PORTS = 20_000, 10_000  # where a port is chosen from the number of a Slurm job


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the check. `address` and `port`: where rank 0, or torchrun's agent, holds the store."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int | None = None
    nodes: int | None = None
    host: str = ""
    address: str = ""
    port: int = 0
    agent_holds_store: bool = False
    run_id: str = ""

    @property
    def is_first_on_host(self) -> bool:
        """Whether it reads for its whole host."""
        return self.local_rank == 0


def member_from(environ: Mapping[str, str]) -> Member:
    """This process, as torchrun, Slurm or MPI describe it; without any of them it is alone."""
    rank, world = number_from(RANK, environ), number_from(WORLD_SIZE, environ)
    host = platform.node()
    if rank is None or world is None or world < 1 or rank >= world:
        return Member(host=host)
    return Member(
        rank=rank,
        world_size=world,
        local_rank=number_from(LOCAL_RANK, environ) or 0,
        local_world_size=number_from(LOCAL_WORLD_SIZE, environ),
        nodes=number_from(NODES, environ),
        host=host,
        address=environ.get("MASTER_ADDR", "") or _slurm_address(environ),
        port=number_from(("MASTER_PORT",), environ) or _slurm_port(environ),
        agent_holds_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run_id=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _slurm_address(environ: Mapping[str, str]) -> str:
    """The first node of the Slurm step: `node[03-07,9]` begins with node03."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return f"{match[1]}{match[2] or ''}" if match else environ.get("SLURM_LAUNCH_NODE_IPADDR", "")


def _slurm_port(environ: Mapping[str, str]) -> int:
    job = number_from(("SLURM_JOB_ID", "SLURM_JOBID"), environ)
    return _FIRST_PORT + job % _PORTS if job is not None else 0
