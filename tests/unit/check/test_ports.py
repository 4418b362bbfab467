"""Ports and those who hold them, from recorded tables and from this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from unhang.check.network.ports import (
    Holder,
    Listener,
    ancestors_of,
    holders_of,
    listeners_in,
    listeners_on,
    read_holder,
    why_not_free,
)

_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 00000000 100 0 0 10 0
   1: 0100007F:BC86 0100007F:733C 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 00000000 20 4 30 10 -1
   2: cut off
"""
_TCP6 = (
    "   0: 00000000000000000000000001000000:733D 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 "
    "00000000     0        0 4713 1 00000000 100 0 0 10 0\n"
)


def test_only_those_that_listen() -> None:
    assert listeners_in(_TCP) == (Listener("127.0.0.1", 29500, 4711, 1000),)
    assert listeners_in(_TCP6) == (Listener("::1", 29501, 4713, 0),)


def test_a_port_of_our_own() -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = int(own.getsockname()[1])
        assert listeners_on(port) == ()
        own.listen()
        (listener,) = listeners_on(port)
        assert why_not_free(port) == "Address already in use"
        (holder,) = holders_of([listener.inode], 5)
    assert holder.pid == os.getpid()
    assert why_not_free(port) == ""


def test_looking_for_holders_has_a_limit() -> None:
    assert holders_of([1], 0.0) == ()


def test_our_ancestors_begin_with_ourselves() -> None:
    found = ancestors_of(os.getpid())
    assert found[:2] == (os.getpid(), os.getppid())
    assert len(set(found)) == len(found)


def _process(proc: Path, pid: int, parent: int, session: int, command: str, environ: str = "") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), str(session), str(session), *["0"] * 15, "4200", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (a) name) " + " ".join(fields))
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes(environ.replace(" ", "\0").encode())


def test_an_orphan_is_a_rank_whose_launcher_is_gone(tmp_path: Path) -> None:
    _process(tmp_path, 1, 0, 1, "/sbin/init")
    _process(tmp_path, 50, 1, 50, "/usr/lib/systemd/systemd --user")
    _process(tmp_path, 70, 1, 70, "python -m torch.distributed.run train.py")
    rank = ("python train.py --wandb-api-key=0123", "RANK=3 PATH=/bin TORCHELASTIC_RUN_ID=job7 SECRET=x")
    _process(tmp_path, 100, 1, 100, *rank)
    _process(tmp_path, 101, 70, 101, *rank)
    _process(tmp_path, 102, 50, 102, *rank)
    _process(tmp_path, 103, 1, 1, *rank)
    _process(tmp_path, 104, 1, 104, "python serve.py", "PATH=/bin")

    def holder(pid: int) -> Holder:
        found = read_holder(pid, tmp_path)
        assert found is not None
        return found

    assert [pid for pid in (100, 101, 102, 103, 104) if holder(pid).is_orphan] == [100, 102]
    assert holder(100).command == "python train.py --wandb-api-key=***"
    assert (holder(100).rank, holder(100).run_id, holder(100).started_ticks) == ("3", "job7", 4200)
    assert read_holder(999, tmp_path) is None
