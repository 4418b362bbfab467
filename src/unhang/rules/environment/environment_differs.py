"""Rule: a variable that should be the same on all ranks is not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Case, Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.model.readings import Value
from unhang.rules.environment.misconfigured_env import MUST_AGREE
from unhang.rules.environment.odd_ranks import Difference, differences, headline, nothing_to_compare, shown, together
from unhang.rules.reading_rule import ReadingRule, cite

_PROCESS, _VARIABLE = "environment.process", "environment.variable"
_COMPARED = re.compile(r"(?:NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP|MKL|UCX|FI)_\w+|PYTHON[A-Z]+|LD_PRELOAD|LD_LIBRARY_PATH")
# What is set for each rank or host, or only changes what is printed, or where something is written.
_BY_NATURE = re.compile(
    r"(?:\w+_)?(?:RANK|WORLD_SIZE|LOCALID|PROCID|NODEID)|\w*VISIBLE_DEVICES|TORCHELASTIC_\w+|PET_\w+|SLURM_\w+|\w+_(?:IFNAME|IFACE"
    r"|HCA|NET_DEVICES|HOSTID|GID_INDEX|DOMAIN|TOPO_FILE|PLACES|AFFINITY)|CUDA_MPS_\w+|NCCL_DEBUG\w*|TORCH_LOGS|TORCH_CPP_LOG_LEVEL"
    r"|TORCH_SHOW_CPP_STACKTRACES|TORCH_(?:NCCL|FR)_(?:DEBUG_INFO|DUMP)\w*|PYTHON(?:UNBUFFERED|FAULTHANDLER|WARNINGS|DONTWRITEBYTECODE"
    r"|STARTUP|IOENCODING|BREAKPOINT)|(?!LD_)\w+_(?:DIR|DIRECTORY|PATH|FILE|HOME|PREFIX|ROOT|TMP)|UNHANG_\w+"
)
_TRANSPORT = re.compile(r"(?:NCCL|GLOO|UCX|FI|TORCH_NCCL|TORCH_GLOO|TORCH_DISTRIBUTED)_\w+")
_LOADED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")


def differs_by_nature(name: str) -> bool:
    """Whether a variable is expected to differ between ranks or hosts, or does no harm if it does."""
    return _BY_NATURE.fullmatch(name) is not None


def _rank(rank: int, **values: str) -> list[Reading]:
    return [
        read(_PROCESS, rank=rank, variables=len(values)),
        *(read(f"{_VARIABLE} {name}", rank=rank, value=value) for name, value in values.items()),
    ]


class EnvironmentDiffers(ReadingRule):
    """A variable of torch, NCCL, gloo, UCX or Python is not the same on all ranks.

    What it detects:
        The variables of those libraries on all ranks, and what decides which libraries are loaded (LD_LIBRARY_PATH, PYTHONPATH). Not
        those that belong to one rank or host: numbers of ranks, visible devices, interfaces, paths, what is printed.

    Why it hangs:
        NCCL reads its settings on each rank for itself and does not compare them: ends that disagree on protocol, algorithm or sizes
        wait for data of another size. With TORCH_DISTRIBUTED_DEBUG=DETAIL on some ranks only, these make more collectives.

    How to confirm:
        `xargs -0 -n1 < /proc/PID/environ | sort` of two ranks, compared by diff.

    How to fix:
        Set variables in one place for all nodes, by the launcher; look at the shell's start files of the node that differs.

    Sources:
        NCCL user guide, environment variables; NVIDIA/nccl issues 969 and 1328.
    """

    id = "environment-differs"
    cause = "misconfigured-env"
    reads = (_PROCESS,)
    EXAMPLES: ClassVar = (
        Fires(readings_case(*[_rank(r, **({"NCCL_PROTO": "LL"} if r == 2 else {})) for r in range(4)]), (2,)),
        Fires(
            readings_case(
                *[_rank(r, TORCH_DISTRIBUTED_DEBUG="DETAIL" if r == 0 else "OFF") for r in range(3)], world=3
            ),
            (0,),
        ),
        Fires(readings_case(*[_rank(r, LD_LIBRARY_PATH="/a" if r < 2 else "/b") for r in range(4)]), ()),
        Quiet(
            readings_case(
                *[
                    _rank(
                        r,
                        CUDA_VISIBLE_DEVICES=str(r),
                        NCCL_SOCKET_IFNAME=f"eth{r // 2}",
                        TORCHELASTIC_ERROR_FILE=f"/tmp/{r}/error.json",
                        **({"NCCL_DEBUG": "INFO"} if r == 0 else {}),
                        UCX_NET_DEVICES=f"mlx5_{r}:1",
                        TORCH_EXTENSIONS_DIR=f"/tmp/{r}",
                    )
                    for r in range(4)
                ]
            ),
            "what belongs to a rank or a host, or is only printed",
        ),
    )

    def missing(self, case: Case) -> str:
        """One rank has nothing to compare with."""
        return super().missing(case) or nothing_to_compare(case, _PROCESS)

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all variables that differ on the same ranks."""
        processes = s.readings.of(_PROCESS)
        names = dict.fromkeys(r.subject for r in s.readings.of(_VARIABLE) if _COMPARED.fullmatch(r.subject))
        found = {name: _by_value(s, name, processes) for name in names if not differs_by_nature(name)}
        for group in together(sorted(differences(found), key=_weight, reverse=True)):
            first = group[0]
            wanted = "; ".join(_wanted(d) for d in group[:3])
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=headline(group),
                confidence=_weight(first),
                culprit_ranks=first.odd,
                because="Each rank reads its variables for itself; nothing compares them."
                + (" Both ends of a connection must agree on this one." if first.what in MUST_AGREE else ""),
                evidence=cite([r for d in group for r in d.cited]),
                fixes=(
                    Fix(
                        "Set it in one place, for all ranks",
                        setting=f"{wanted}; by the launcher: srun --export=ALL, mpirun -x NAME, env: of the job's template",
                        verify="unhang check --only environment on all ranks: no difference",
                        undo="restore the nodes' own settings",
                    ),
                ),
            )


def _by_value(s: Situation, name: str, processes: Iterable[Reading]) -> dict[Value, tuple[Reading, ...]]:
    """The readings of a variable by value, the most frequent first; where it is not set, what says that it is not."""
    set_on = {r.rank: r for r in s.readings.of(_VARIABLE, subject=name)}
    found: dict[Value, tuple[Reading, ...]] = {}
    for process in processes:
        reading = set_on.get(process.rank)
        value = reading.text("value") if reading else None
        unset = Reading(_VARIABLE, name, {"value": "(not set)"}, process.rank, process.host)
        found[value] = (*found.get(value, ()), reading or unset)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _weight(difference: Difference) -> float:
    name = difference.what
    if name in MUST_AGREE:
        return 0.92
    if name == "TORCH_DISTRIBUTED_DEBUG":
        return 0.9 if "DETAIL" in difference.by_value else 0.55
    if _TRANSPORT.fullmatch(name):
        return 0.75
    return 0.7 if name in _LOADED else 0.6


def _wanted(difference: Difference) -> str:
    if not difference.has_majority:
        return f"{difference.what}=the same everywhere"
    usual = difference.usual
    return f"{difference.what} not set" if usual is None else f"{difference.what}={shown(usual)}"
