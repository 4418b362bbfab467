"""Facts about one job, as they were seen: frozen records, one per kind of evidence, each with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from unhang.model.frames import Frame, KernelWait, ThreadWait, WaitingTask
from unhang.model.frames import Look as Look


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact was seen."""

    reader: str
    path: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A fact that could not be had, and why. Never a zero, never a silent None."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """What one thread was doing. `frames` are innermost first.

    `ident`: its number in Python and in recorded calls. `kernel`: the system call in which it waits. `given`: the user's frames
    that gave it its work, or started it.
    """

    name: str
    frames: tuple[Frame, ...]
    is_main: bool = False
    is_active: bool | None = None
    owns_gil: bool | None = None
    os_thread_id: int | None = None
    process_id: int | None = None
    ident: int | None = None
    kernel: KernelWait | None = None
    given: tuple[Frame, ...] = ()
    source: Source = Source("unknown")


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception: `handled` is true where the program caught it and went on. `frames` are innermost first.

    `handler` is the frame that printed or logged a handled exception, or that holds one which is still on its way.
    `file`: what it could not read, of so many `file_bytes`, last written at `file_written_ns`; "" where that is not known.
    `before`: those in whose handling it was raised, as far as a log shows them, first ones first. `is_cause`: the next one was raised from it.
    """

    type: str
    message: str
    time_ns: int
    frames: tuple[Frame, ...]
    handled: bool = False
    handler: Frame | None = None
    parameters: tuple[str, ...] = ()
    source: Source = Source("unknown")
    file: str = ""
    file_bytes: int = 0
    file_written_ns: int = 0
    before: tuple[RaisedError, ...] = ()
    is_cause: bool = False

    @property
    def text(self) -> str:
        """Type and message, as Python prints them."""
        return f"{self.type}: {self.message}"


SEEN_BY_LAUNCHER = "seen by the launcher"  # the text of an end that only the launcher tells
SENT_BY_ITSELF = "sent by itself"  # of a signal that the rank sent to itself, or to its process group


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended. `kind`: exit, os._exit, signal, vanished. `code` is negative for a signal, None if unknown.

    `time_ns` is wall-clock time. `frames`: the caller of `os._exit` or `sys.exit`, or the stack of a fatal signal,
    innermost first. `line`: where a log tells it, which orders ends without a time.
    """

    kind: str
    code: int | None
    time_ns: int
    frames: tuple[Frame, ...] = ()
    text: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class ProcessState:
    """/proc at capture. `state` is the kernel's letter (R S D T Z), "gone" for a dead process.

    `cpu_share`: cores used by the process; `children_share`: by all that it started, None where it started none or was looked at once;
    `child_writes`: one of its children waits for room in a pipe; `child_asks`: one waits for something on its standard input.
    """

    state: str
    cpu_share: float | None = None
    children_share: float | None = None
    wchan: str = ""
    open_fds: int | None = None
    fd_limit: int | None = None
    rss_bytes: int | None = None
    oom_kills: int | None = None
    child_writes: bool = False
    child_asks: bool = False


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate. `name` is `pg_name` of the flight recorder, `desc` its `pg_desc`. Ranks are global.

    `timeout_set_at`: who gave the timeout, the user or a library; None for torch's default, or where it is not known.
    `left_out`: members for which others stand, and who are not among `ranks`.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    timeout_s: float | None = None
    backend: str = ""
    timeout_set_at: Frame | None = None
    left_out: int = 0

    @property
    def size(self) -> int:
        """How many members it has, 0 where that is not known."""
        return len(self.ranks) + self.left_out

    def __str__(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"group {self.name}"


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that the flight recorder does not show: point-to-point, group creation, store wait, initialisation.

    `kind`: send recv isend irecv new_group store_wait init_process_group destroy_process_group store_set monitored_barrier
    loader_end work_wait (for a collective, while transfers are open that nobody waits for).
    `peer`: a global rank. Of keys that differ in numbers alone only the last `store_set` is kept; `index` counts them. So it
    is with the ends of loaders that were asked at one place: `detail` is the number of batches of the last round.
    `ended_ns` is None while the call is under way. `index` counts calls of that kind (and group) on this rank from 1.
    `detail`: the store's key, the ranks of a new group, or the limit of a monitored barrier in seconds. `tag`: of a transfer; 1 for
    a new group that its members alone make (`use_local_synchronization`). `nth`: which one it is of
    the sends, or the receives, with this peer, tag and group, from 1; 0 where it is not known. `awaited_ns`: since when the rank has
    waited for an isend or irecv; None where it has not, as far as that is known.
    """

    kind: str
    index: int
    group: str
    peer: int | None
    started_ns: int
    ended_ns: int | None
    frames: tuple[Frame, ...] = ()
    detail: str = ""
    tag: int = 0
    nth: int = 0
    awaited_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Who a training process is. Times are wall-clock nanoseconds.

    `local_world_size`: ranks that its launcher started here. `is_command`: `unhang run` itself started the process.
    `variables`: those that decide how ranks communicate, at the start of the process and when the default group stood.
    `device`: that was current then; None where none was in use yet.
    """

    rank: int
    world_size: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str = ""
    restart: int = 0
    torch_version: str = ""
    backend: str = ""
    started_ns: int = 0
    local_world_size: int | None = None
    is_command: bool = False
    variables: Mapping[str, str] = field(default_factory=dict, compare=False)
    variables_at_init: Mapping[str, str] | None = field(default=None, compare=False)
    device: int | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log or of the child's output, without its prefixes; `rank`, `host` and time where these tell them."""

    text: str
    source: Source
    rank: int | None = None
    time_ns: int | None = None
    host: str = ""


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """All that is known of one rank apart from its collective calls, which are rows of the CollectiveTable.

    `twins`: the pids of other processes that said at the same time that they are this rank.
    `held`: the exception with which the main thread stood in an `except`, a `finally` or an `__exit__` at capture.
    `kept`: exceptions with which work of a future or a task has ended; whether anybody asks for them is not known.
    `skipped_steps`: optimizer steps that a loss scaler has left out since the last one that was taken. `quiet_s`: how long it had not moved
    when it ended; `usual_quiet_s`: the longest such time in this job that had ended by itself.
    `in_handler`: the signal whose handler the main thread is in. `look`: where it was looked at from outside alone.
    `native`: the main thread's frames with those of C++, innermost first.
    `variables`: (frame, name, value) of local numbers and booleans of the main thread's user frames, innermost first; also of a rank that died
    before its stacks were taken.
    `facts`: what the recorder noted of the program: `program.tensor`, `program.loader`. `samples`, `tokens`: what its loaders have handed out.
    """

    identity: RankIdentity
    stacks: tuple[ThreadStack, ...] = ()
    state: ProcessState | None = None
    error: RaisedError | None = None
    handled: tuple[RaisedError, ...] = ()
    held: RaisedError | None = None
    kept: tuple[RaisedError, ...] = ()
    twins: tuple[int, ...] = ()
    exit: ProcessExit | None = None
    pending: tuple[PendingCall, ...] = ()
    steps: int | None = None
    skipped_steps: int = 0
    thread_waits: tuple[ThreadWait, ...] = ()
    tasks: tuple[WaitingTask, ...] = ()
    in_handler: str = ""
    phase: str = ""
    initialized: bool | None = None
    heartbeat_age_s: float | None = None
    quiet_s: float | None = None
    usual_quiet_s: float = 0.0
    look: Look | None = None
    facts: tuple[Reading, ...] = ()
    native: tuple[Frame, ...] = ()
    variables: tuple[tuple[Frame, str, str], ...] = ()
    samples: int = 0
    tokens: int = 0
    unavailable: tuple[Unavailable, ...] = field(default=())

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.identity.rank

    @property
    def main_stack(self) -> ThreadStack | None:
        """The stack of the main thread, where one was taken."""
        return next((s for s in self.stacks if s.is_main), None)

    @property
    def own_stacks(self) -> tuple[ThreadStack, ...]:
        """Those of the rank's own process, not of its children."""
        return tuple(s for s in self.stacks if s.process_id in (None, self.identity.pid))

    @property
    def main_frames(self) -> tuple[Frame, ...]:
        """Its frames, innermost first; none where no stack was taken."""
        stack = self.main_stack
        return stack.frames if stack is not None else ()


MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class LogEvent:
    """What one line of a log says. `kind` is `family.what`; `fields` are the named parts of the line, as printed.

    `rank` is global, None where neither the line nor its file tells it. `order` counts the lines of all logs in the order
    in which they are judged: by time where the lines have times, else as they were given. `says`: what such a line proves of
    the job: "hang" (a limit of a wait was hit), "crash" (a process failed), or nothing.
    """

    kind: str
    text: str
    source: Source
    order: int = 0
    rank: int | None = None
    host: str = ""
    time_ns: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    says: str = ""

    @property
    def is_progress(self) -> bool:
        """Whether it shows that the training moves."""
        return self.kind in ("progress.step", "progress.bar", "learn.loss_finite")

    def number(self, name: str) -> int | None:
        """A field as a whole number; None where it is absent or no number of a sane length."""
        value = self.fields.get(name, "").strip()
        return int(value) if value.lstrip("-").isdecimal() and len(value) <= MAX_DIGITS else None

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")


Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing as it is on one machine. `kind` is `area.what` (`machine.limit`, `network.port`, `device.state`).

    `subject` is which one of its kind (`nofile`, `eth0`, `29500`, `GPU 3`); `fields` are its named values, with units in the
    names (`size_bytes`, `delay_ms`). `rank` and `host` say who read it; `rank` is None where it does not belong to one rank.
    `at`: the line of the user's program that it is a fact of.
    """

    kind: str
    subject: str = ""
    fields: Mapping[str, Value] = field(default_factory=dict)
    rank: int | None = None
    host: str = ""
    at: Frame | None = None

    def __getitem__(self, name: str) -> Value:
        return self.fields.get(name)

    def number(self, name: str) -> float | None:
        """A field as a number; None where it is absent or none."""
        value = self.fields.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        """A field as text; empty where it is absent."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    @property
    def where(self) -> str:
        """Who read it, for people."""
        parts = [self.host, f"rank {self.rank}" if self.rank is not None else ""]
        return ", ".join(p for p in parts if p) or "this machine"


def as_numbers(version: str | None) -> tuple[int, ...]:
    """`2.7.0+cu126` as (2, 7, 0), to compare; empty where it is none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(n) for n in match[1].split(".")) if match else ()
