"""Takes the calls, stacks and /proc of living ranks into their folders.

Calls come from torch's C++ worker server as JSON (no GIL needed), or from the recorder's thread as a pickle; stacks from py-spy,
else from faulthandler by a real-time signal, which needs no ptrace and no GIL.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.analyze.activity import OF_RAY
from unhang.analyze.waits.starts import ID_OF_START
from unhang.inside.recorder.flight import groups_in, merged
from unhang.watch.folders import write_whole
from unhang.watch.process import children_of, py_spy, take_stacks, workers_of_ray
from unhang.watch.process_tree import descendants_of, line_of
from unhang.watch.ranks import WatchedRank, take_native

MOST_WORKERS = 16
CONFIRM_S = 0.35
PICKLES_S = 0.6  # the recorder turns to what it is asked every quarter of a second
INTERRUPT_CALLS_S, INTERRUPT_STACKS_S, INTERRUPT_PATHS_S = 0.5, 1.2, 0.3
_ENDED = ("Z", "X", "gone")
AT_INTERRUPT = "interrupt.txt"  # the recorder's: the stacks at the moment at which the signal came to the rank
_REST_S = 0.08  # a file that did not grow for so long is whole
STACK_SIGNAL = signal.SIGRTMIN + 5


def save_calls(rank: WatchedRank, timeout_s: float = 1.0) -> bytes | None:
    """The rank's calls as JSON, also left in its folder; None where it does not answer. Blocks: up to `timeout_s`."""
    dump = None if rank.probe.is_stopped() else fetch_calls(rank.folder, timeout_s)
    if dump is not None:
        write_whole(rank.folder / "flight.json", dump)
    return dump


def take_evidence(ranks: Sequence[WatchedRank], oom_kills: int | None, with_workers: bool = False) -> dict[int, bytes]:
    """Calls, stacks and /proc of all `ranks`; the JSON dumps by rank. `with_workers`: see `save_stacks`. Blocks: some seconds at most.

    A torch without that server (2.7 and older) is asked through the recorder.
    """
    dumps = {}
    for rank in ranks:
        if (dump := save_calls(rank)) is not None:
            dumps[rank.rank] = dump
        rank.write_state({**rank.probe.read(), "oom_kills": oom_kills})
    unheard = [r for r in ranks if r.rank not in dumps and r.has_groups() and not r.probe.is_stopped()]
    request_pickles([r.folder for r in unheard], PICKLES_S)
    save_stacks(ranks, with_workers)
    return dumps


def save_stacks(ranks: Sequence[WatchedRank], with_workers: bool = False) -> None:
    """Stacks by py-spy, else by faulthandler. Blocks: some seconds at most.

    `with_workers`: of their children too; what was seen of those before stays where nothing more is seen of them now.
    """
    stopped = [r.pid for r in ranks if r.probe.is_stopped()]
    found = take_stacks([r.pid for r in ranks], stopped)
    for rank in ranks:
        if rank.pid in found:
            _write_stacks(rank, [*found[rank.pid], *(_of_workers(rank) if with_workers else ())])
    if with_workers:
        take_workers(ranks)
    without = [r for r in ranks if r.pid not in found and r.pid not in stopped]
    for rank in without:
        drop_if_old(rank, "pyspy.json")
        drop_if_old(rank, "variables.json")
        drop_if_old(rank, "faulthandler.txt")
    ask_faulthandler({r.pid: r.folder / "faulthandler.txt" for r in without if listens_to_stack_signal(r.pid)})


def _write_stacks(rank: WatchedRank, threads: list[Any]) -> None:
    write_whole(rank.folder / "pyspy.json", json.dumps(_with_pid(threads, rank.pid)).encode())


def take_workers(ranks: Sequence[WatchedRank], native: bool = False) -> None:
    """Stacks of the children of each rank (loader workers), beside those of the rank itself. Blocks: 1 s a rank; `native`: see `take_native`."""
    if native:
        take_native(ranks, py_spy())
    for rank in ranks:
        children = children_of(rank.pid)[:MOST_WORKERS]
        found = take_stacks(children, timeout_s=1.0) if children else {}
        if found:
            with suppress(OSError, ValueError):
                known = json.loads((rank.folder / "pyspy.json").read_bytes())
                kept = [t for t in known if t.get("pid") not in found]
                extra = [t for pid, threads in found.items() for t in _with_pid(threads, pid)]
                write_whole(rank.folder / "pyspy.json", json.dumps(kept + extra).encode())


def take_driver(run_dir: Path, root_pid: int, own: Collection[int]) -> None:
    """The stacks of the program that started the ranks, where it is no rank and no launcher of torch: it may give them their work.

    With them Ray's actors and tasks, and the stacks of those that are no ranks. `own`: pids of the ranks; of none, launchers were looked at. Blocks: up to 2 s.
    """
    if (
        own
        and root_pid not in own
        and not is_torchs_launcher(root_pid)
        and (threads := take_stacks([root_pid], timeout_s=1.0).get(root_pid))
    ):
        seen = workers_of_ray(p.pid for p in descendants_of(root_pid))
        calls = {pid: what for pid, what in seen.items() if pid not in own or "." not in what}
        stacks = take_stacks([pid for pid in calls if pid not in own][:MOST_WORKERS], timeout_s=1.0)
        for pid, call in calls.items():  # of a worker that py-spy cannot look at, what it is called in
            of_it = stacks.get(pid) or [{"pid": pid, "frames": []}]
            threads += [{**t, "thread_name": f"{OF_RAY}{call}", "os_thread_id": None} for t in of_it]
        write_whole(run_dir / "launcher.json", json.dumps(threads).encode())


def rendezvous_stacks(pids: Sequence[int]) -> list[Any]:
    """The threads of launchers that wait in their rendezvous; none where none does. Blocks: up to 3 s."""
    threads = [t for found in take_stacks(pids[:8]).values() for t in found]
    main = [
        t for t in threads if t.get("thread_name") in (None, "", "MainThread")
    ]  # others keep the rendezvous alive while ranks run
    for thread in main:
        thread["thread_name"] = f"MainThread {_start_id(thread.get('pid') or 0)}".strip()
    waits = any("rendezvous" in str(f.get("filename")) for t in main for f in t.get("frames", ()))
    return threads if waits else []


def _start_id(pid: int) -> str:
    """The id by which a launcher of torch looks for its other nodes, as its command line gives it."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        for word, after in zip(words, [*words[1:], ""], strict=True):
            name, _, given = word.partition("=")
            if name in ("--rdzv-id", "--rdzv_id"):
                return f"{ID_OF_START}{given or after}"[:120]
    return ""


def is_torchs_launcher(pid: int) -> bool:
    """Whether a process is torchrun."""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"torchrun" in command or b"torch.distributed.run" in command
    return True


def _of_workers(rank: WatchedRank) -> list[Any]:
    """What was seen of the rank's children before."""
    with suppress(OSError, ValueError, AttributeError):
        known = json.loads((rank.folder / "pyspy.json").read_bytes())
        return [t for t in known if t.get("pid") != rank.pid]
    return []


def take_at_abort(rank: WatchedRank, peers: Sequence[WatchedRank]) -> None:
    """Calls and stacks of a rank that sleeps in its SIGABRT handler, and of its peers; then lets it die.

    Blocks: some seconds at most.
    """
    for other in (rank, *peers):
        save_calls(other)
    save_stacks([rank, *peers])
    request_pickles([other.folder for other in (rank, *peers)], timeout_s=0.5)
    let_die(rank)


def let_die(rank: WatchedRank) -> None:
    """Lets a rank die that sleeps in its SIGABRT handler."""
    rank.end_abort()
    wake_sleeper(rank.pid)


def is_unchanged(ranks: Sequence[WatchedRank], dumps: Mapping[int, bytes]) -> bool:
    """Whether a proof still holds a moment later: same pages, same open calls. Blocks: CONFIRM_S and the answers."""
    before = {r.rank: r.movement for r in ranks}
    pickles = {r.folder: p for r in ranks if r.rank not in dumps and (p := _pickle(r.folder)) is not None}
    time.sleep(CONFIRM_S)
    if pickles and (request_pickles(list(pickles), PICKLES_S) or any(_pickle(f) != p for f, p in pickles.items())):
        return False
    now = time.monotonic()
    for rank in ranks:
        if rank.poll(now) is not None or rank.movement != before[rank.rank]:
            return False
        again = None if rank.probe.is_stopped() else fetch_calls(rank.folder)
        if rank.rank in dumps and (again is None or open_calls(again) != open_calls(dumps[rank.rank])):
            return False
    return True


def _pickle(folder: Path) -> bytes | None:
    with suppress(OSError):
        return (folder / "flight.pickle").read_bytes()
    return None


def take_before_end(ranks: Sequence[WatchedRank], oom_kills: int | None) -> None:
    """What the ranks do at the moment at which a signal ends the job.

    A signal to the whole group has come to them already: what they wrote themselves at that moment counts more than what is
    seen of them a moment later. Blocks: up to 2 s.
    """
    spying = threading.Thread(target=_spy_before_end, args=(ranks,), daemon=True)
    spying.start()
    for rank in ranks:
        state = rank.probe.read()
        if state["state"] not in _ENDED:
            rank.keep_state({**state, "oom_kills": oom_kills})
    deadline = time.monotonic() + INTERRUPT_CALLS_S
    for rank in ranks:
        drop_if_old(rank, "flight.json")
        # A peer that died of the signal has ended the rank's call by now: what was taken in this quiet shows it still.
        if not (rank.folder / "flight.json").exists():
            save_calls(rank, max(0.05, deadline - time.monotonic()))
    request_pickles([r.folder for r in ranks if not r.probe.is_stopped()], INTERRUPT_PATHS_S)
    spying.join(INTERRUPT_STACKS_S)


def let_go(rank: WatchedRank) -> None:
    """The signal did not end the rank: what was kept of that moment counts no more."""
    rank.keep_state({})
    with suppress(OSError):
        os.truncate(rank.folder / AT_INTERRUPT, 0)  # the rank holds it open


def _spy_before_end(ranks: Sequence[WatchedRank]) -> None:
    untouched = [r.pid for r in ranks if not _has_felt_it(r)]
    stopped = [r.pid for r in ranks if r.probe.is_stopped()]
    found = take_stacks(untouched, stopped, INTERRUPT_STACKS_S)
    for rank in ranks:
        if _has_felt_it(rank):
            drop_if_old(rank, "pyspy.json")
        elif rank.pid in found:
            _write_stacks(rank, found[rank.pid])


def _has_felt_it(rank: WatchedRank) -> bool:
    with suppress(OSError):
        return (rank.folder / AT_INTERRUPT).stat().st_size > 0
    return False


def drop_if_old(rank: WatchedRank, name: str) -> None:
    """What was taken before the rank last moved is not of this moment; to move on being ended does not count."""
    with suppress(OSError):
        if (rank.folder / name).stat().st_mtime_ns < rank.moved_ns:
            if name == "faulthandler.txt":
                os.truncate(rank.folder / name, 0)  # the rank holds it open
            else:
                (rank.folder / name).unlink()


def _with_pid(threads: list[Any], pid: int) -> list[Any]:
    return [{**t, "pid": t.get("pid") or pid} for t in threads if isinstance(t, dict)]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


def fetch_calls(folder: Path, timeout_s: float = 1.0) -> bytes | None:
    """The JSON dump of all calls of the rank in `folder`, or None where the server does not answer.

    Blocks: up to about `timeout_s` for each of torch's two recorders.
    """
    return fetch_calls_at(folder / "fr.sock", timeout_s, folder / "groups.jsonl")


def fetch_calls_at(server: Path, timeout_s: float = 1.0, groups: Path | None = None) -> bytes | None:
    """The same of torch's worker server at a socket. A torch for CUDA keeps the calls of NCCL apart from all others."""
    of_others = _asked(server, "fr_trace_json", timeout_s)
    of_nccl = _asked(server, "dump_nccl_trace_json", timeout_s) if of_others is not None else None
    if not of_others or not of_nccl:
        return of_others or of_nccl or None
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        known = groups_in(str(groups)) if groups is not None else {}
        return json.dumps(merged(json.loads(of_nccl), json.loads(of_others), known)).encode()
    return of_nccl


def _asked(server: Path, handler: str, timeout_s: float) -> bytes | None:
    """What a handler answers, empty where this torch has none of that name; None where the server does not answer."""
    connection = _UnixConnection(str(server), timeout_s)
    try:
        connection.request("POST", f"/handler/{handler}")
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 and body[:1] == b"{" else b""
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def open_calls(dump: bytes) -> list[tuple[str, int, str]]:
    """(group, sequence number, op) of the calls that have not completed, for a cheap comparison of two dumps."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        entries: list[dict[str, Any]] = json.loads(dump).get("entries", [])
        return [
            (str(e["process_group"][0]), int(e["collective_seq_id"]), str(e["profiling_name"]))
            for e in entries
            if not (e.get("retired") or e.get("state") == "completed")
        ]
    return []


def request_pickles(folders: Sequence[Path], timeout_s: float = 1.0) -> list[Path]:
    """Makes the recorders write flight.pickle anew; returns the folders that did not answer (the GIL is held).

    Blocks: up to `timeout_s`.
    """
    waiting = [folder for folder in folders if _ask(folder)]
    silent = [folder for folder in folders if folder not in waiting]
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        waiting = [folder for folder in waiting if not (folder / "flight.pickle").exists()]
        if waiting:
            time.sleep(0.01)
    return silent + waiting


def drop_answers(folder: Path) -> None:
    """Removes what the recorder wrote when it was last asked."""
    for name in ("flight.pickle", "held.json", "waits.json"):
        (folder / name).unlink(missing_ok=True)


def _ask(folder: Path) -> bool:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    try:
        drop_answers(folder)
        sender.sendto(b"dump", str(folder / "ctl.sock"))
        return True
    except OSError:
        return False
    finally:
        sender.close()


def ask_faulthandler(files: Mapping[int, Path], wait_s: float = 1.0) -> None:
    """Makes the recorder's faulthandler write all stacks, by pid to its file. Only for processes in which it is registered.

    Blocks: until all files have grown and rest, `wait_s` at most: a process that gets no processor writes late.
    """
    sizes = before = {pid: _size(path) for pid, path in files.items()}
    for pid in files:
        with suppress(OSError):
            os.kill(pid, STACK_SIGNAL)
    end = time.monotonic() + wait_s
    while files and time.monotonic() < end:
        time.sleep(_REST_S)
        sizes, last = {pid: _size(path) for pid, path in files.items()}, sizes
        if sizes == last and all(sizes[pid] > before[pid] for pid in files):
            return


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def listens_to_stack_signal(pid: int) -> bool:
    """Whether a handler for the stack signal is installed; without one the signal would end the process."""
    with suppress(OSError, ValueError, StopIteration):
        caught = int(line_of(f"/proc/{pid}/status", "SigCgt:"), 16)
        return bool(caught >> (STACK_SIGNAL - 1) & 1)
    return False


def wake_sleeper(pid: int) -> None:
    """Interrupts every thread of an aborting process, so that the sleep in its SIGABRT handler ends."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            libc.tgkill(pid, int(task), int(STACK_SIGNAL))
