"""`unhang.install()`: the evidence that `unhang run` would gather, without it: in notebooks, Ray actors, and under Slurm."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.inside.guards import identity
from unhang.inside.guards.job import group_timeout
from unhang.inside.guards.shared_memory import process_fields
from unhang.inside.guards.words import Duration, log, seconds_of
from unhang.inside.guards.worker import Worker
from unhang.inside.imports import act_after_import
from unhang.inside.rank import RANK, number_from
from unhang.inside.recorder import flight, recording
from unhang.inside.recorder.calls import note_initialized, replace
from unhang.inside.recorder.install import ADDED_BY_US, OLD_NAME
from unhang.inside.recorder.install import install as start_recorder
from unhang.inside.recorder.recording import Recording, attempt, write_json
from unhang.inside.recorder.values import write_variables

RUN_DIR = "UNHANG_RUN_DIR"
# The report directory of a job that was installed by hand; the processes that a rank starts inherit it.
BY_HAND = "UNHANG_INSTALLED"
CALLS_KEPT = "2000"
_C10D = "torch.distributed.distributed_c10d"
_ABSENT = (
    ("output.log", "the output is not copied without `unhang run`"),
    (
        "state of the processes",
        "nothing watches from outside without `unhang run`: a rank that is stopped or killed leaves little",
    ),
)
STALL_AFTER_S = 60.0
VERDICT = "verdict.json"
_TURN_S = 0.5


def install(report_dir: str | os.PathLike[str] | None = None, *, stall_after_s: Duration | None = None) -> Path | None:
    """Records this process for `unhang diagnose`, also where the job was not started by `unhang run`.

    Call it first in the script, before the process group is made. The calls, groups, steps, errors and ends of all ranks
    of the job go to one folder. When a rank has waited in a collective for longer than `stall_after_s`, every rank writes
    its calls and stacks there, so that `unhang diagnose` can name the culprit while the job stands or after it was killed.
    Under `unhang run` it only makes sure that this process is recorded. Never raises.

    Called when the group is there already, it says so: what happened before is not known, the rest is.

    Example:
        ```python
        report_dir = unhang.install("unhang-reports/mine")
        dist.barrier()
        assert report_dir is not None and (report_dir / "bundle" / "job.json").exists()
        ```

    Args:
        report_dir: the same on all ranks, on a disk that all nodes see where there are several; by default UNHANG_REPORT_DIR,
            or a folder below `unhang-reports` named after the job or its launcher.
        stall_after_s: seconds, or a text such as "2m"; by default UNHANG_STALL_AFTER, or a minute.

    Returns:
        The report directory; None where nothing can be written, which is logged. Under `unhang run`, its run directory.

    Blocks: never.
    """
    try:
        return _install(report_dir, stall_after_s)
    except Exception as error:  # noqa: BLE001 - the training goes on unrecorded
        log("unhang", f"this process is not recorded ({type(error).__name__}: {error})")
        return None


def _install(given: str | os.PathLike[str] | None, stall_after_s: Duration | None) -> Path | None:
    if os.environ.get(RUN_DIR) and not os.environ.get(BY_HAND):
        start_recorder()
        return Path(os.environ[RUN_DIR])
    folder = Path(
        os.environ.get(BY_HAND) or given or os.environ.get("UNHANG_REPORT_DIR") or default_report_dir()
    ).absolute()
    is_first = _make(folder / "bundle")
    os.environ[BY_HAND], os.environ[RUN_DIR] = str(folder), str(folder / "bundle")
    keep_calls()
    start_recorder()
    watch_after(_limit(stall_after_s))
    act_after_import({_C10D: functools.partial(attempt, "watch for stalls", _watch_init)})
    if is_first:
        log("unhang", f"recording into {folder}; if the job hangs or fails: unhang diagnose {folder}")
    c10d: Any = sys.modules.get(_C10D)
    if c10d is not None and c10d.is_initialized():
        _catch_up(c10d)
    return folder


def _limit(given: Duration | None) -> float:
    """The setting; nonsense in the variable is no reason to do without a record."""
    if given is not None:
        return seconds_of(given)
    with suppress(ValueError):
        return seconds_of(os.environ.get("UNHANG_STALL_AFTER") or STALL_AFTER_S)
    return STALL_AFTER_S


def _make(bundle: Path) -> bool:
    """Makes the folder; returns whether this is the first process of the job there, which describes it.

    Raises:
        OSError: nothing can be written there.
    """
    (bundle / "ranks").mkdir(parents=True, exist_ok=True)
    fields = {
        "command": without_secrets(sys.argv),
        "started_ns": time.time_ns(),
        "cwd": os.getcwd(),
        "unhang_version": sys.modules["unhang"].__version__,
        "options": {"report_dir": str(bundle.parent), "installed_by_hand": True},
        "absent": [{"what": what, "reason": reason} for what, reason in _ABSENT],
    }
    _forget_earlier_job(bundle)
    unfinished = bundle / f"job.json.{os.getpid()}.tmp"
    unfinished.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    try:
        os.link(unfinished, bundle / "job.json")
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        unfinished.replace(bundle / "job.json")
        return True
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def _forget_earlier_job(bundle: Path) -> None:
    """Removes what describes a job that ran here before the launcher of this one began. Its ranks count as earlier attempts."""
    began_ns = started_s(_launcher()) * 10**9
    with suppress(OSError, ValueError, TypeError, KeyError):
        if began_ns and json.loads((bundle / "job.json").read_bytes())["started_ns"] < began_ns:
            (bundle / VERDICT).unlink(missing_ok=True)
            (bundle / "job.json").unlink(missing_ok=True)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line in which the values of options named like secrets are blotted out."""
    shown, hides_next = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_secret = any(word in name.upper() for word in identity.SECRET)
        shown.append("***" if hides_next else f"{name}=***" if is_secret and equals else argument)
        hides_next = is_secret and not equals and name.startswith("-")
    return shown


def default_report_dir() -> Path:
    """A folder that all ranks of this job choose alike: by the job's number, or by the process that started them all."""
    environ = os.environ
    if environ.get("SLURM_JOB_ID"):
        name = "-".join(filter(None, ("slurm", environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID"))))
    elif environ.get("TORCHELASTIC_RUN_ID", "none") != "none":
        name = environ["TORCHELASTIC_RUN_ID"]
    else:
        pid = _launcher()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started_s(pid)))}-{pid}"
    return Path("unhang-reports") / "".join(c if c.isalnum() or c in "-_." else "_" for c in name)


def _launcher() -> int:
    """The process that began the job: the parent of a rank, else this one."""
    return os.getppid() if number_from(RANK) is not None else os.getpid()


def started_s(pid: int) -> int:
    """When a process of this machine began, in whole seconds since the epoch; 0 where that cannot be known."""
    try:
        ticks = int(process_fields(pid)[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def keep_calls() -> None:
    """Has torch keep the last calls, under both names of the setting, unless the user has set one."""
    environ = os.environ
    size = next((environ[name] for name in identity.VARIABLES if environ.get(name)), CALLS_KEPT)
    if not environ.get(OLD_NAME):
        environ[ADDED_BY_US] = OLD_NAME
    for name in identity.VARIABLES:
        environ[name] = environ.get(name) or size


def _watch_init(c10d: Any) -> None:
    """Starts the watch where a process becomes a rank: also in a child that inherited all this by a fork."""
    original = c10d.init_process_group
    if hasattr(original, "_unhang_watched"):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        attempt("watch for stalls", start_stall_watch)
        return original(*args, **kwargs)

    init_process_group._unhang_watched = True  # type: ignore[attr-defined]
    replace(c10d, "init_process_group", original, init_process_group)


def _catch_up(c10d: Any) -> None:
    """The group is there: records what can still be known of it."""
    if c10d.get_rank() == 0:
        log(
            "unhang",
            "install() comes after init_process_group: earlier calls may be missing, and TORCH_FR_BUFFER_SIZE was read without us",
        )
    note_initialized(c10d, group_timeout("cuda" if "nccl" in str(c10d.get_backend()) else "cpu"))
    if recording.current is not None:
        start_stall_watch()


def watch_after(limit_s: float) -> None:
    """Sets after how many quiet seconds in a collective a rank counts as stalled."""
    global _stall_after_s
    _stall_after_s = limit_s


def start_stall_watch() -> None:
    """Starts the watch of this process, once; a forked child has none before it becomes a rank itself."""
    global _watch
    if _watch is None or _watch.pid != os.getpid():
        _watch = StallWatch(_stall_after_s)
        Worker("unhang-stalls", _watch.turn)


class StallWatch:
    """What the thread knows: when this rank last moved, and for which stall of the job it has written its evidence."""

    def __init__(self, limit_s: float) -> None:
        self.pid = os.getpid()
        self._limit_s = limit_s
        self._movement: tuple[Any, ...] = ()
        self._moved_at, self._moved_ns = time.monotonic(), time.time_ns()
        self._is_mine = self._was_looked_at = False
        self._answered = 0

    def turn(self) -> float:
        """One look; returns the seconds until the next."""
        rec = recording.current
        if rec is not None and rec.pid == self.pid:
            self._look(rec)
        return min(_TURN_S, self._limit_s / 4)

    def _look(self, rec: Recording) -> None:
        movement = movement_of(rec)
        if movement != self._movement:
            self._movement, self._was_looked_at = movement, False
            self._moved_at, self._moved_ns = time.monotonic(), time.time_ns()
            self._moves_again(rec)
        elif not self._was_looked_at and time.monotonic() - self._moved_at >= self._limit_s:
            self._was_looked_at = True
            if is_waiting(rec):
                self._declare(rec)
        self._answer(rec)

    def _declare(self, rec: Recording) -> None:
        """This rank waits: says so to the others by the verdict file, unless one of them was first."""
        known = _read_verdict(_verdict_path(rec))
        if known and not known.get("withdrawn"):
            return
        self._is_mine = True
        seconds = time.monotonic() - self._moved_at
        number = rec.identity["rank"]
        verdict = {
            "kind": "suspected",
            "onset_ns": self._moved_ns,
            "detected_ns": time.time_ns(),
            "waiting_ranks": [number],
            "reason": f"rank {number} has waited in a collective for {seconds:.0f} s",
            "withdrawn": False,
        }
        write_json(str(_verdict_path(rec)), verdict)
        report = _verdict_path(rec).parent.parent
        log("unhang", f"rank {number} has waited for {seconds:.0f} s; see: unhang diagnose {report}")

    def _answer(self, rec: Recording) -> None:
        """Writes calls and stacks, once for each stall that any rank has declared."""
        verdict = _read_verdict(_verdict_path(rec))
        moment = verdict.get("detected_ns", 0)
        if not moment or verdict.get("withdrawn") or moment == self._answered:
            return
        self._answered = moment
        write_evidence(rec)

    def _moves_again(self, rec: Recording) -> None:
        if not self._answered:
            return
        with suppress(OSError):
            os.unlink(rec.path("flight.pickle"))
        if self._is_mine:
            self._is_mine = False
            write_json(str(_verdict_path(rec)), {**_read_verdict(_verdict_path(rec)), "withdrawn": True})
            log("unhang", f"rank {rec.identity['rank']} moves again")


_stall_after_s = STALL_AFTER_S
_watch: StallWatch | None = None


def write_evidence(rec: Recording) -> None:
    """The calls of this rank and the stacks of its threads, into its folder. Takes some ten milliseconds."""
    recording.attempt("variables.json", write_variables, rec)
    if rec.page.words[recording.INITIALIZED] == 1:
        recording.attempt("flight.pickle", flight.dump, rec, "flight.pickle")
    with suppress(OSError), open(rec.path("faulthandler.txt"), "a", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)


def movement_of(rec: Recording) -> tuple[Any, ...]:
    """What changes when the rank gets on: steps, calls of each group, calls in the ring."""
    words = rec.page.words
    return words[recording.STEPS], words[recording.RECORDS], words[recording.INITIALIZED], rec.page.statuses().tobytes()


def is_waiting(rec: Recording) -> bool:
    """Whether a call of this rank is under way. The cheap signs come first: only they make the flight recorder speak."""
    if rec.page.has_open_record():
        return True
    if rec.page.words[recording.INITIALIZED] != 1 or not rec.page.has_open_status():
        return False
    if not any(flight.recorders("_json")):
        return True
    entries = [entry for dump in flight.as_json() for entry in dump.get("entries", ())]
    return any(not (e.get("retired") or e.get("state") == "completed") for e in entries)


def _verdict_path(rec: Recording) -> Path:
    return Path(rec.folder).parent.parent / VERDICT


def _read_verdict(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
