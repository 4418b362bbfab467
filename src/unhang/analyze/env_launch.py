"""What a launcher's command line leaves without effect, and where it stands against variables of the same script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.analyze.env_finding import CAUSE, opinion, without
from unhang.model import EvidenceLine, Finding, Fix, Location
from unhang.read.environment.settings import Assignment, Launch, Settings

USELESS, AGAINST = "env-without-effect", "env-contradiction"
_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.run")
_OWN = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def judge_launches(s: Settings) -> Iterator[Finding]:
    """Findings on the command lines of launchers."""
    for launch in s.launches:
        if _TORCHRUN.search(launch.program):
            yield from _standalone(s, launch)
            yield from _overwritten(s, launch)
        yield from _devices(s, launch)
        yield from _nodes(s, launch)


def _standalone(s: Settings, launch: Launch) -> Iterator[Finding]:
    options = launch.options
    ignored = [o for o in ("master-port", "master-addr", "rdzv-endpoint", "rdzv-id", "nnodes") if o in options]
    if "standalone" not in options or not ignored:
        return
    if ignored == ["nnodes"] and options["nnodes"] in ("", "1", "1:1"):
        return
    given = " ".join(f"--{o}={options[o]}" if options[o] else f"--{o}" for o in ignored)
    yield _on_launch(
        s,
        launch,
        f"{given}: no effect beside --standalone",
        "--standalone means one node and a free port that torchrun chooses itself; addresses and ports given beside it are not used.",
        0.9 if ignored != ["nnodes"] else 0.85,
        "torchrun --standalone ...  without " + ", ".join(f"--{o}" for o in ignored),
    )


def _overwritten(s: Settings, launch: Launch) -> Iterator[Finding]:
    for name in _OWN:
        set_by_hand = s.last(name)
        if set_by_hand is not None and set_by_hand.line and name not in s.mentions:
            title = f"{name} set by hand has no effect: torchrun sets it for each worker"
            yield opinion(
                s,
                (set_by_hand,),
                USELESS,
                0.8,
                title,
                "torchrun gives every worker its own value and overwrites what is there.",
            )
    chosen = (
        "standalone" in launch.options
        or launch.options.get("rdzv-backend") == "c10d"
        or "rdzv-endpoint" in launch.options
    )
    port = s.last("MASTER_PORT")
    if chosen and port is not None and "MASTER_PORT" not in s.mentions:
        how = "--standalone" if "standalone" in launch.options else "a rendezvous endpoint"
        title = f"MASTER_PORT has no effect beside {how}"
        because = "torchrun finds a port through its rendezvous and gives that to the workers as MASTER_PORT; the one set before is overwritten."
        yield opinion(s, (port,), USELESS, 0.75, title, because)


def _devices(s: Settings, launch: Launch) -> Iterator[Finding]:
    wanted = launch.options.get("nproc-per-node") or launch.options.get("num-processes") or ""
    devices = s.last("CUDA_VISIBLE_DEVICES")
    if not wanted.isdecimal() or devices is None or not devices.value or "," not in f"{devices.value},":
        return
    there = [d for d in devices.value.split(",") if d.strip()]
    nodes = launch.options.get("num-machines", "1") or "1"
    if "num-processes" in launch.options and nodes != "1":
        return
    if 0 < len(there) < int(wanted):
        title = f"{wanted} processes on a node, and CUDA_VISIBLE_DEVICES={devices.value} shows {len(there)} device{'s' if len(there) > 1 else ''}"
        because = "The ranks beyond that find no device of their number (invalid device ordinal), or share one, which NCCL refuses."
        yield opinion(s, (devices,), AGAINST, 0.85, title, because, (without(s, devices),))


def _nodes(s: Settings, launch: Launch) -> Iterator[Finding]:
    nodes = launch.options.get("nnodes") or launch.options.get("num-machines") or ""
    if not nodes.isdecimal() or int(nodes) < 2:
        return
    because = "The address must be that of one node, as the others reach it."
    for option in ("master-addr", "rdzv-endpoint", "main-process-ip"):
        host = launch.options.get(option, "")
        if host.rsplit(":", 1)[0] in _LOOPBACK:
            title = f"--{option}={host} with {nodes} nodes: every node waits for itself"
            yield _on_launch(s, launch, title, because, 0.92, f"--{option}=<host name or address of the first node>")
            return
    address = s.last("MASTER_ADDR")
    if address is not None and (address.value or "") in _LOOPBACK and not address.is_default:
        title = f"MASTER_ADDR={address.value} with {nodes} nodes: every node waits for itself"
        yield opinion(s, (address,), AGAINST, 0.85, title, because)


def _on_launch(s: Settings, launch: Launch, title: str, because: str, confidence: float, change: str) -> Finding:
    here = Assignment(launch.program, None, launch.line)
    options = " ".join(f"--{k}={v}" if v else f"--{k}" for k, v in launch.options.items())
    return Finding(
        rule=AGAINST if "with" in title else USELESS,
        cause=CAUSE,
        title=title,
        confidence=confidence,
        culprit_ranks=(),
        because=because,
        location=Location(s.path, launch.line, ""),
        evidence=(EvidenceLine(s.path.rsplit("/", 1)[-1], f"{launch.program} {options}", here.line),),
        fixes=(
            Fix(
                "Change the command line",
                "unhang env: no finding on it",
                command=change,
                undo="restore the command line",
            ),
        ),
    )
