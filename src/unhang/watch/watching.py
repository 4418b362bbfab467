"""What runs in the watcher's process: the kind of agent that the options ask for."""

from __future__ import annotations

from pathlib import Path

from unhang.watch.agent import Agent
from unhang.watch.options import RunOptions


def watch(options: RunOptions, run_dir: Path, root_pid: int, to_supervisor: int, from_supervisor: int) -> None:
    """Watches the job until the supervisor says that it ended. Blocks: as long as the job."""
    kind = Agent
    if options.join is not None:
        from unhang.watch.joined_agent import JoinedAgent as kind
    elif options.metrics_port or options.webhook:
        from unhang.watch.outward import OutwardAgent as kind
    kind(options, run_dir, root_pid, to_supervisor, from_supervisor).run()
