"""A made-up /proc, in a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TORCH = "7f0000000000-7f0000001000 r-xp 00000000 00:00 0 /site-packages/torch/lib/libtorch_cpu.so\n"


class Proc:
    """Processes are added one by one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self").mkdir(parents=True)
        self.be(uid=os.geteuid(), may_trace=True)
        (root / "stat").write_text("btime 1700000000\n")

    def be(self, uid: int, may_trace: bool = False, scope: str | None = None) -> None:
        """Who looks, and what the kernel lets them."""
        capabilities = 1 << 19 if may_trace else 0
        (self.root / "self" / "status").write_text(f"Uid:\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n")
        if scope is not None:
            folder = self.root / "sys/kernel/yama"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "ptrace_scope").write_text(f"{scope}\n")

    def add(
        self,
        pid: int,
        parent: int = 1,
        environment: Mapping[str, str] | None = None,
        command: str = "python -u train.py",
        *,
        state: str = "S",
        torch: bool = True,
        uid: int = 1000,
        started: int = 500,
        inside: tuple[int, ...] = (),
    ) -> None:
        """One process; without `environment` that may not be read."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True)
        words = command.split()
        rest = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{pid} ({words[0][:15]}) {state} {parent} {rest} {started} 0 0\n")
        numbers = "\t".join(map(str, (pid, *inside)))
        (folder / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\nNSpid:\t{numbers}\n")
        (folder / "cmdline").write_text("\0".join(words) + "\0")
        (folder / "exe").symlink_to(f"/usr/bin/{words[0]}")
        if environment is not None:
            (folder / "environ").write_text("".join(f"{k}={v}\0" for k, v in environment.items()))
            (folder / "maps").write_text(TORCH if torch else "")

    def job(self, launcher: int, size: int, **more: str) -> list[int]:
        """A launcher with so many ranks as torchrun starts them; their pids."""
        self.add(launcher, 1, {}, "python /venv/bin/torchrun --nproc-per-node train.py")
        pids = [launcher + 1 + i for i in range(size)]
        for i, pid in enumerate(pids):
            self.add(pid, launcher, {**torchrun(i, size), **more})
        return pids


def torchrun(rank: int, size: int) -> dict[str, str]:
    """What torchrun gives to a rank."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
