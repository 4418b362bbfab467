"""Runs a job, sees it from outside, and notices when it hangs. Here: what `unhang run` was asked to do: command line, `UNHANG_*`, default, in this order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import unhang
from unhang.watch.joining import Join

CALLS_KEPT = "2000"
OLD_BUFFER_SIZE_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
BUFFER_SIZE_NAMES = ("TORCH_FR_BUFFER_SIZE", OLD_BUFFER_SIZE_NAME)
BOOTSTRAP = Path(unhang.__file__).parent / "inside" / "recorder" / "bootstrap"

OnHang = Literal["abort", "report"]
Value = TypeVar("Value")


class Headline(NamedTuple):
    """A verdict in one line, and what of it a machine may want. `ranks`: the culprits."""

    line: str
    cause: str = "unknown"
    ranks: tuple[int, ...] = ()


class SeenOutside(NamedTuple):
    """What looks from outside say of the ranks below a process. `word`: moves, stalled or unknown; `text`: who waits where."""

    word: str
    text: str
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunOptions:
    """The settings of one run. `env`: the job's without our part; `added`: variables that the user wants set for it.

    `stall_after_s` None: adaptive, at least 15. `abort_after_s` None: a hang that is only suspected is never ended.

    `render`: makes the text of the verdict from the run directory, for a hang that is shown while the job still stands;
    `headline`: one line of it, for other nodes; `get_ready`: imports what that needs. `look_outside`: looks at ranks below a process that have no recorder; where they
    stand still, what was seen is in the run directory. `join`: how to meet the watchers of other nodes, if there are any.
    `native`: whether C++ frames are taken of a hang. `metrics_port`: where Prometheus may ask; `webhook`: the URL that gets a message on a hang (it may be a secret).
    """

    report_dir: Path
    stall_after_s: float | None = None
    abort_after_s: float | None = None
    on_hang: OnHang = "abort"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    added: Mapping[str, str] = field(default_factory=dict, repr=False)
    debugs_nccl: bool = False
    native: bool = False
    has_default_report_dir: bool = False
    render: Callable[[Path], str] | None = field(default=None, repr=False, compare=False)
    headline: Callable[[Path], Headline] | None = field(default=None, repr=False, compare=False)
    get_ready: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    look_outside: Callable[[int, Path], SeenOutside | None] | None = field(default=None, repr=False, compare=False)
    join: Join | None = None
    metrics_port: int | None = None
    webhook: str | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, object]:
        """The form that `job.json` keeps; the environment is not part of it."""
        return {
            "report_dir": str(self.report_dir),
            "stall_after_s": self.stall_after_s,
            "abort_after_s": self.abort_after_s,
            "on_hang": self.on_hang,
            **({"join": str(self.join.hub)} if self.join else {}),
        }


def parse_seconds(text: str) -> float:
    """A positive, finite number of seconds.

    Raises:
        ValueError: it is none.
    """
    seconds = math.nan
    with suppress(ValueError):
        seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("not a positive number of seconds")
    return seconds


def parse_variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of the command line.

    Raises:
        ValueError: it is no such thing.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError("write NAME=VALUE")
    return name, value


def debug_nccl(run_dir: Path) -> dict[str, str]:
    """What makes NCCL say what it does, into files beside the evidence instead of the job's output."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(run_dir / "nccl.%h.%p.log"),
        "TORCH_NCCL_DESYNC_DEBUG": "1",
    }


def parse_port(text: str) -> int:
    """The number of a TCP port.

    Raises:
        ValueError: it is none.
    """
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ValueError("not a port from 1 to 65535")
    return int(text)


def parse_url(text: str) -> str:
    """An address of the web.

    Raises:
        ValueError: it is none.
    """
    if not text.startswith(("http://", "https://")):
        raise ValueError("not a URL that begins with http:// or https://")
    return text


def parse_on_hang(text: str) -> OnHang:
    """`abort` or `report`.

    Raises:
        ValueError: it is neither.
    """
    choices: dict[str, OnHang] = {"abort": "abort", "report": "report"}
    if text not in choices:
        raise ValueError("neither abort nor report")
    return choices[text]


def default_report_dir() -> Path:
    """`unhang-reports/<time>`, below the working folder."""
    return Path("unhang-reports") / time.strftime("%Y%m%d-%H%M%S")


def choose(
    name: str,
    given: Value | None,
    env: Mapping[str, str],
    parse: Callable[[str], Value],
    default: Value,
    complain: Callable[[str], None],
) -> Value:
    """One setting: `given` on the command line, `UNHANG_<name>`, or `default`. Nonsense is ignored with one line."""
    variable = f"UNHANG_{name}"
    if given is not None or not env.get(variable):
        return default if given is None else given
    try:
        return parse(env[variable])
    except ValueError as error:
        complain(f"{variable}={env[variable]!r} is ignored: it is {error}")
        return default


def read_options(
    env: Mapping[str, str],
    complain: Callable[[str], None],
    *,
    report_dir: Path | None = None,
    stall_after_s: float | None = None,
    abort_after_s: float | None = None,
    on_hang: OnHang | None = None,
    metrics_port: int | None = None,
    webhook: str | None = None,
) -> RunOptions:
    """Puts the settings together; the keyword arguments are what the command line said."""
    return RunOptions(
        report_dir=choose("REPORT_DIR", report_dir, env, Path, default_report_dir(), complain),
        has_default_report_dir=report_dir is None and not env.get("UNHANG_REPORT_DIR"),
        stall_after_s=choose("STALL_AFTER", stall_after_s, env, parse_seconds, None, complain),
        abort_after_s=choose("ABORT_AFTER", abort_after_s, env, parse_seconds, None, complain),
        on_hang=choose("ON_HANG", on_hang, env, parse_on_hang, "abort", complain),
        env=env,
        metrics_port=choose("METRICS", metrics_port, env, parse_port, None, complain),
        webhook=choose("WEBHOOK", webhook, env, parse_url, None, complain),
    )


def job_environment(
    env: Mapping[str, str], run_dir: Path, tracer_pid: int, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of the job: the user's own and `more`, with the recorder's bootstrap in front and the calls recorded."""
    env = {**env, **(more or {})}
    user_size = next((env[name] for name in BUFFER_SIZE_NAMES if env.get(name)), CALLS_KEPT)
    sizes = {name: env.get(name) or user_size for name in BUFFER_SIZE_NAMES}
    # Newer torch warns about the old name: the recorder takes it back where it is not needed, unless it is the user's own.
    added = {} if env.get(OLD_BUFFER_SIZE_NAME) else {"UNHANG_ADDED": OLD_BUFFER_SIZE_NAME}
    path = ":".join(part for part in (str(BOOTSTRAP), env.get("PYTHONPATH", "")) if part)
    return {
        **env,
        **sizes,
        **added,
        "PYTHONPATH": path,
        "UNHANG_RUN_DIR": str(run_dir),
        "UNHANG_TRACER_PID": str(tracer_pid),
    }


def chain_bootstrap(command: Sequence[str]) -> list[str]:
    """The command with the recorder's bootstrap in front also where it sets PYTHONPATH itself: `env PYTHONPATH=libs python train.py`.

    Not behind the program: those words are its own.
    """
    is_program = (word in ("-m", "-c") or word.endswith((".py", ".sh")) for word in command)
    until = next((at for at, found in enumerate(is_program) if found), len(command))
    name = "PYTHONPATH="
    return [
        name + ":".join(filter(None, (str(BOOTSTRAP), word.removeprefix(name))))
        if word.startswith(name) and at < until
        else word
        for at, word in enumerate(command)
    ]
