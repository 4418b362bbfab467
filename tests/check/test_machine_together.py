"""Two ranks that meet: clocks that are apart, and a folder that is another one for one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.check.test_participants import together
from unhang.check.areas import CheckOptions, Context, Participants
from unhang.check.machine import read_offset
from unhang.check.machine.folders import read_shared
from unhang.model import Reading, Unavailable

_LIMIT_S = 50
_AHEAD_S = 3600
# Shifts the wall clock of one process; the clock that cannot be set stays as it is.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, t);
    if (!failed && clock == CLOCK_REALTIME) t->tv_sec += SHIFT_S;
    return failed;
}
time_t time(time_t *at) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (at) *at = t.tv_sec;
    return t.tv_sec;
}
int gettimeofday(struct timeval *tv, void *zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}
"""


def readings(party: Participants, *folders: Path) -> list[Reading | Unavailable]:
    """What a rank reads together with the others."""
    context = Context(party, CheckOptions(folders=folders), {})
    return [*read_offset(party), *read_shared(context)]


def test_ranks_of_one_machine_agree_and_leave_nothing(tmp_path: Path) -> None:
    found = together(3, [0, 1, 2], lambda party: readings(party, tmp_path))
    assert set(found) == {0, 1, 2}
    for facts in found.values():
        offset, shared = facts
        assert abs(offset.number("offset_s")) <= offset.number("uncertainty_s") + 0.01
        assert (shared["sees"], shared["writer_rank"]) == (True, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_first_rank_cannot_write_is_not_judged(tmp_path: Path) -> None:
    found = together(2, [0, 1], lambda party: readings(party, tmp_path / "none"))
    for facts in found.values():
        lacks = [f for f in facts if isinstance(f, Unavailable)]
        assert [f.what for f in lacks] == ["machine.folder_shared"]
        assert "could not write there: " in lacks[0].reason


def test_without_a_folder_nothing_is_written() -> None:
    found = together(2, [0, 1], readings)
    assert {f.reason for f in found[1] if isinstance(f, Unavailable)} == {"no folder was named (--folder)"}


# The check itself, with a store of files in place of torch's, whose import takes longer than all the rest.
_PROGRAM = """
import fcntl, os, sys
from pathlib import Path
from unhang.cli.main import main
from unhang.check import areas as party

class FileStore:
    def __init__(self, folder):
        self.folder = Path(folder)
    def path(self, key):
        return self.folder / key.replace("/", "%")
    def set(self, key, value):
        part = self.folder / f"part-{os.getpid()}"
        part.write_text(value)
        part.rename(self.path(key))
    def get(self, key):
        return self.path(key).read_text()
    def check(self, keys):
        return all(self.path(key).exists() for key in keys)
    def add(self, key, amount):
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            total = (int(self.get(key)) if self.check([key]) else 0) + amount
            self.set(key, str(total))
            return total

store = FileStore(sys.argv.pop())
party._connect = lambda member, limit_s: store
sys.exit(main())
"""


def command(store: Path, folder: Path) -> list[str]:
    """A check of this area."""
    what = ["check", "--only", "machine", "--folder", str(folder), "--format", "json"]
    return [sys.executable, "-c", _PROGRAM, *what, str(store)]


def variables(rank: int, **more: str) -> dict[str, str]:
    """Those that a launcher sets."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    return {**os.environ} | {k: str(v) for k, v in told.items()} | more


def report_of_two(store: Path, folder: Path, before: list[str], **more: str) -> dict[str, Any]:
    """The report of two ranks, of which the second is started through `before`, with more variables."""
    store.mkdir()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = subprocess.Popen(command(store, folder), env=variables(0), **pipes)
    second = subprocess.Popen([*before, *command(store, folder)], env=variables(1, **more), **pipes)
    try:
        text, errors = first.communicate(timeout=_LIMIT_S)
        second.communicate(timeout=_LIMIT_S)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    assert text, errors.decode()
    report: dict[str, Any] = json.loads(text)
    return report


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.skipif(not all(map(shutil.which, ("gcc", "unshare"))), reason="needs gcc and unshare")
def test_a_clock_that_is_ahead_and_another_folder_are_found(tmp_path: Path) -> None:
    source, library, folder = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "checkpoints"
    source.write_text(_CLOCK)
    folder.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-DSHIFT_S={_AHEAD_S}", "-o", library, source, "-ldl"], check=True, timeout=30
    )
    elsewhere = f'mount -t tmpfs -o size=64m none {folder} && exec "$@"'
    report = report_of_two(
        tmp_path / "store",
        folder,
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", elsewhere, "sh"],
        LD_PRELOAD=str(library),
    )
    found = {f["rule"]: f for f in report["findings"]}
    assert set(found) == {"clock-skew", "folder-not-shared"}
    assert found["clock-skew"]["title"].startswith("the clocks of the ranks are 3")
    apart_s = float(found["clock-skew"]["title"].split(" are ")[1].split(" s")[0])
    assert abs(apart_s - _AHEAD_S) < 5
    assert found["clock-skew"]["culprit_ranks"] == [], "of two clocks nobody knows which is right"
    assert found["folder-not-shared"]["culprit_ranks"] == [1]
    assert list(folder.iterdir()) == []
