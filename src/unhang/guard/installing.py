"""`unhang.install()`: the evidence that `unhang run` would gather, without it: in notebooks, Ray actors, and under Slurm."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.guard import identity, stalls
from unhang.guard.durations import Duration, seconds_of
from unhang.guard.telling import tell
from unhang.recorder import announce, groups, page, settings
from unhang.recorder.imports import act_after_import
from unhang.recorder.install import install as start_recorder
from unhang.recorder.recording import attempt

RUN_DIR = "UNHANG_RUN_DIR"
# The report directory of a job that was installed by hand; the processes that a rank starts inherit it.
BY_HAND = "UNHANG_INSTALLED"
CALLS_KEPT = "2000"
_C10D = "torch.distributed.distributed_c10d"
_BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", settings.OLD_NAME)
_ABSENT = (
    ("output.log", "the output is not copied without `unhang run`"),
    (
        "state of the processes",
        "nothing watches from outside without `unhang run`: a rank that is stopped or killed leaves little",
    ),
)


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
        The report directory; None where nothing can be written, which is told. Under `unhang run`, its run directory.

    Blocks: never.
    """
    try:
        return _install(report_dir, stall_after_s)
    except Exception as error:  # noqa: BLE001 - the training goes on unrecorded
        tell("unhang", f"this process is not recorded ({type(error).__name__}: {error})")
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
    stalls.watch_after(_limit(stall_after_s))
    act_after_import({_C10D: _watch_init})
    if is_first:
        tell("unhang", f"recording into {folder}; if the job hangs or fails: unhang diagnose {folder}")
    c10d: Any = sys.modules.get(_C10D)
    if c10d is not None and c10d.is_initialized():
        _catch_up(c10d)
    return folder


def _limit(given: Duration | None) -> float:
    """The setting; nonsense in the variable is no reason to do without a record."""
    if given is not None:
        return seconds_of(given)
    with suppress(ValueError):
        return seconds_of(os.environ.get("UNHANG_STALL_AFTER") or stalls.STALL_AFTER_S)
    return stalls.STALL_AFTER_S


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
            (bundle / stalls.VERDICT).unlink(missing_ok=True)
            (bundle / "job.json").unlink(missing_ok=True)


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line in which the values of options with telling names are blotted out."""
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
    return os.getppid() if identity.number_from(identity.RANK) is not None else os.getpid()


def started_s(pid: int) -> int:
    """When a process of this machine began, in whole seconds since the epoch; 0 where that cannot be known."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def keep_calls() -> None:
    """Has torch keep the last calls, under both names of the setting, unless the user has set one."""
    environ = os.environ
    size = next((environ[name] for name in _BUFFER_SIZES if environ.get(name)), CALLS_KEPT)
    if not environ.get(settings.OLD_NAME):
        environ[settings.ADDED_BY_US] = settings.OLD_NAME
    for name in _BUFFER_SIZES:
        environ[name] = environ.get(name) or size


def _watch_init(c10d: Any) -> None:
    """Starts the watch where a process becomes a rank: also in a child that inherited all this by a fork."""
    original = c10d.init_process_group
    if hasattr(original, "_unhang_watched"):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        attempt("watch for stalls", stalls.start)
        return original(*args, **kwargs)

    init_process_group._unhang_watched = True  # type: ignore[attr-defined]
    dist: Any = sys.modules.get("torch.distributed")
    for module in (c10d, dist):
        if module is not None and getattr(module, "init_process_group", original) is original:
            module.init_process_group = init_process_group


def _catch_up(c10d: Any) -> None:
    """The group is there: records what can still be known of it."""
    rank = c10d.get_rank()
    if rank == 0:
        tell(
            "unhang",
            "install() comes after init_process_group: earlier calls may be missing, and TORCH_FR_BUFFER_SIZE was read without us",
        )
    rec = announce.announce_at_init(rank)
    if rec is None:
        return
    rec.identity.update(world_size=c10d.get_world_size(), backend=str(c10d.get_backend()))
    announce.complete_identity(rec)
    groups.write_new(rec, c10d, _timeout(c10d))
    rec.page.words[page.INITIALIZED] = 1
    stalls.start()


def _timeout(c10d: Any) -> Any:
    """That of the default group; None, which stands for torch's default, where it does not tell."""
    torch: Any = sys.modules["torch"]
    with suppress(Exception):
        device = torch.device("cuda" if "nccl" in str(c10d.get_backend()) else "cpu")
        return c10d.group.WORLD._get_backend(device).options._timeout
    return None
