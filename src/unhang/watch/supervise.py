"""Starts the job and stays beside it: signals, output, exit code, the end of a hung one. `agent` does the watching."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unhang.watch import RunOptions, chain_bootstrap, job_environment
from unhang.watch.agent_process import ENDING, FORWARDED, Agent, joint_line, signals_kept_for_us
from unhang.watch.folders import ended_well_before, forget_nodes, withdraw_verdict, write_job_file
from unhang.watch.process_tree import Hold, JobTree, Process, become_subreaper, descendants_of, end, identify, rank_pids
from unhang.watch.relay import LOG_INCOMPLETE, Relay, start_relay

HUNG_EXIT_CODE, _SI_KERNEL = 124, 128
TICK_S, OUTPUT_WAIT_S, MOST_WATCHERS = 0.1, 1.0, 3
AGENT_WAIT_S, JOINED_WAIT_S = 3.0, 9.0  # joined: it hears why the others failed
# Who sends a signal again sees that the job has not had it: `pkill unhang` reaches us and the watcher alone.
AGAIN_NS = 1_000_000_000
SECOND_INTERRUPT_S = (0.2, 10.0)  # sooner is the same key press seen twice, later is a new wish


def show(text: str) -> None:
    """Text on stderr, as it is; a stderr that cannot be written is no reason to stop."""
    data = memoryview(text.encode(errors="replace"))
    with suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def say(text: str) -> None:
    """One line on stderr."""
    show(f"unhang: {text}\n")


@dataclass(frozen=True)
class JobEnd:
    """How it ended. `exit_code`: the job's own (128 + n for signal n), 124 where we ended it; `joint_line`: another node's verdict on it."""

    exit_code: int
    ended_by_us: bool = False
    interrupted_by: str | None = None
    died_of_interrupt: bool = False
    joint_line: str = ""


class Supervisor:
    """One run of one job; `facts` are the fields of `job.json` that are known before it starts."""

    def __init__(self, options: RunOptions, run_dir: Path, facts: Mapping[str, Any]) -> None:
        self.options, self.run_dir = options, run_dir
        self.job_file: dict[str, Any] = {**facts, "started_ns": time.time_ns(), "options": options.as_json()}
        self.absent: list[dict[str, str]] = list(facts.get("absent", ()))
        self.statuses, self.root = dict[int, int](), 0
        self.relay: Relay | None = None
        self.agent: Agent | None = None
        self.ended_by_us = self.is_condemned = False  # condemned: each node ends its ranks, whoever is first
        self.joint_line = self.crash_elsewhere = ""
        self.interrupted_by: str | None = None
        self.interrupted_twice, self.watchers_left = False, MOST_WATCHERS
        self._last_interrupt = float("-inf")
        self._has_been_ended = self._had_orphans = self._had_no_ranks = False
        self._hold: Hold | None = None
        self._spared: set[Process] = set()

    # Start

    def run(self, command: Sequence[str]) -> JobEnd:
        """Runs the job to its end. Blocks: as long as the job."""
        self.write_job_file()
        become_subreaper()
        self._spared.update(descendants_of(os.getpid()))
        with signals_kept_for_us() as (waited, mask_of_job):
            self.note_ignored(waited)
            self.start_relay()
            try:
                self.start_job(command, mask_of_job)
            except OSError as error:
                say(f"{command[0]}: {error.strerror}")
                return self.finish(126 if isinstance(error, PermissionError) else 127)
            self.start_agent()
            try:
                while not self.is_over:
                    self.on_signal(signal.sigtimedwait(waited, TICK_S))
                    self.reap()
                    self.read_agent()
                    self.release_if_due()
            finally:
                self.release()
            self.take_pending(waited)
            job_end = self.finish(os.waitstatus_to_exitcode(self.statuses.get(self.root, signal.SIGKILL)))
            self.take_pending(waited)
            return job_end

    def note_ignored(self, waited: frozenset[int]) -> None:
        """Writes into the watcher's log which signals the caller ignores: they reach neither us nor the job."""
        names = [name for name in FORWARDED if getattr(signal, name) not in waited]
        if names:
            with suppress(OSError), (self.run_dir / "agent.log").open("a") as log:
                log.write(f"ignored by whoever started us, and so by us and the job: {', '.join(names)}\n")

    def start_relay(self) -> None:
        """Puts the relay between the job and our stdout and stderr; without it the job writes there itself."""
        try:
            self.relay = start_relay(self.run_dir / "output.log")
            self.spare(self.relay.pid)
        except OSError as error:
            self.do_without("output.log", f"the output cannot be copied: {error.strerror}")

    def start_job(self, command: Sequence[str], mask: set[int]) -> None:
        """Starts the job in our process group, so that the terminal treats it as without us."""
        descriptors = self.relay.job_descriptors() if self.relay else {}
        try:
            self.root = os.posix_spawnp(
                command[0],
                chain_bootstrap(command),
                job_environment(self.options.env, self.run_dir, os.getpid(), self.options.added),
                file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for number, source in descriptors.items()],
                setsigmask=mask,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        finally:
            if self.relay:
                self.relay.close_job_ends()

    def start_agent(self) -> None:
        """Starts the watcher; without it the job goes on unwatched."""
        try:
            self.agent = Agent(self.options, self.run_dir, self.root)
            self.spare(self.agent.pid)
        except OSError as error:
            self.do_without("watcher", f"the job goes on unwatched: {error.strerror}")

    def spare(self, pid: int) -> None:
        """A process of ours, no part of the job."""
        if process := identify(pid):
            self._spared.add(process)

    def do_without(self, what: str, reason: str) -> None:
        """Says and records that something could not be had."""
        say(reason)
        self.absent.append({"what": what, "reason": reason})

    # While it runs

    @property
    def is_over(self) -> bool:
        """Whether the job's first process ended, or was ended and did not even die of SIGKILL."""
        return self.root in self.statuses or self._has_been_ended

    def take_pending(self, waited: frozenset[int]) -> None:
        """Takes signals that came together with the end of the job, so that they do not end us before the report."""
        while info := signal.sigtimedwait(waited, 0):
            self.note_interruption(info.si_signo)

    def reap(self) -> None:
        """Takes the exit status of every child that ended, adopted ones included."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.statuses[ended[0]] = ended[1]

    def on_signal(self, info: signal.struct_siginfo | None) -> None:
        """Passes a signal on to the job, unless it has it already."""
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        if info.si_signo == signal.SIGWINCH and self.relay and self.relay.has_terminal:
            self.relay.resize()
            self.signal_job(info.si_signo)  # again: the first time it may have seen the old size
            return
        was_interrupted, is_second = self.interrupted_by is not None, self.note_interruption(info.si_signo)
        is_again = was_interrupted and time.time_ns() - self.job_file.get("interrupted_ns", 0) > AGAIN_NS
        hold = self._hold if was_interrupted or self.interrupted_by is None else self.hold()
        if is_second:
            self.interrupted_twice = True
            say("interrupted twice: all processes of the job are ended")
            self.release()
            self.end_job()
        elif info.si_code != _SI_KERNEL and (is_again or not (self.agent and self.agent.saw(info.si_signo))):
            if hold is None:
                self.signal_job(info.si_signo)
            else:
                hold.passed_on.append(info.si_signo)
                hold.let_launchers_go()  # it came to us alone

    def hold(self) -> Hold | None:
        """Holds the first signal that would end the job until the watcher has kept what every rank does."""
        if self.agent is None:
            return None
        self._hold = hold = Hold(self.run_dir, self.root)
        if not hold.is_needed:
            self.release()
            return None
        self.agent.report_interruption()
        if self.relay:
            self.relay.mark_interruption()
        self.write_job_file()
        return hold

    def release_if_due(self) -> None:
        """Lets go of a signal that the watcher was not quick enough for."""
        if self._hold is not None and time.monotonic() >= self._hold.until:
            self.release()

    def release(self) -> None:
        """Lets the job go on, and have the signals that were held back."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.let_launchers_go()
            for signo in hold.passed_on:
                self.signal_job(signo)

    def note_interruption(self, signo: int) -> bool:
        """Remembers what ended the job; True for the second Ctrl-C."""
        name = signal.Signals(signo).name
        if name in ENDING and self.interrupted_by is None:
            self.interrupted_by = name
            self.job_file["interrupted_ns"] = time.time_ns()  # what happens from now on is the signal's doing
        if signo != signal.SIGINT:
            return False
        before, self._last_interrupt = self._last_interrupt, time.monotonic()
        return SECOND_INTERRUPT_S[0] <= self._last_interrupt - before <= SECOND_INTERRUPT_S[1]

    def signal_job(self, signo: int) -> None:
        """Sends a signal to the job's first process, which is our unreaped child: the pid cannot be another's."""
        self.reap()
        if self.root not in self.statuses:
            os.kill(self.root, signo)

    def read_agent(self, is_finishing: bool = False) -> None:
        """Does what the watcher says, and notices its death."""
        if self.agent is None:
            return
        for message in self.agent.messages():
            self.on_message(message)
        if self.agent is not None and self.agent.pid in self.statuses and not is_finishing:
            code, self.agent = os.waitstatus_to_exitcode(self.statuses[self.agent.pid]), None
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            forget_nodes(self.run_dir)
            self.watchers_left -= 1
            is_followed = code < 0 and self.watchers_left > 0  # its own fault would come again
            after = "another one goes on" if is_followed else "the job goes on unwatched"
            self.do_without("watcher", f"the watcher ended unexpectedly ({how}); {after}")
            if is_followed:
                withdraw_verdict(self.run_dir)
                self.start_agent()

    def on_message(self, message: Mapping[str, Any]) -> None:
        """One message: a verdict, a line or a text to show, or something that the watcher could not have."""
        event = message.get("event")
        if event == "note":
            say(" ".join(str(message.get("text", "")).split()))
        elif event == "show":
            show(f"\n{str(message.get('text', '')).rstrip()}\n")
        elif event == "absent":
            self.absent.append({"what": str(message.get("what")), "reason": str(message.get("reason"))})
        elif event == "secured":
            self.release()
        elif event == "goes-on":
            self.interrupted_by = None
            self.job_file.pop("interrupted_ns", None)
        elif event in ("joint", "condemned"):
            self.on_joint_verdict(message)
        elif event == "verdict" and message.get("end") and self.may_end(bool(message.get("left"))):
            self.ended_by_us, self._had_no_ranks = True, bool(message.get("left"))
            say(f"the job hangs ({message.get('kind')}); ending it")
            self.end_job()

    def on_joint_verdict(self, message: Mapping[str, Any]) -> None:
        """A verdict over all nodes. Where they end their ranks for it, the end of ours may be another node's doing.

        The watcher says so, and when, while ours live; they may be gone by the time we read it.
        """
        line = joint_line(message) if message["event"] == "joint" else ""
        if message.get("kind") in ("crash", "left"):
            self.crash_elsewhere = line
        elif line:
            say(line)
        may_end = self.options.on_hang == "abort" and not self.interrupted_by
        if may_end and message.get("will_end"):
            self.is_condemned, self.joint_line = True, line
            self.job_file.setdefault("aborted_ns", message["ns"])
            self.write_job_file()

    def may_end(self, without_ranks: bool = False) -> bool:
        """Whether a hung job is to be ended: not if it has come to its end in the meantime, or somebody else ends it. `without_ranks`: none of them was left before."""
        ranks = rank_pids(self.run_dir)
        is_ending = self.is_over or self.interrupted_by or (ranks and not (without_ranks or any(map(identify, ranks))))
        return self.options.on_hang == "abort" and not is_ending

    def end_job(self) -> None:
        """Ends every process of the job. Blocks: up to 8 s."""
        self._has_been_ended = True
        if self.relay:
            self.relay.fold()
        self.job_file.setdefault("aborted_ns", time.time_ns())  # what happens from now on is our doing
        self.write_job_file()
        self.end_processes([])

    def end_processes(self, only: Sequence[int]) -> None:
        """Ends the job's processes, or only those with the given pids."""
        tree = JobTree(os.getpid(), self._spared)
        left = end(lambda: [p for p in tree.members() if not only or p.pid in only], self.reap)
        if left:
            pids = ", ".join(str(p.pid) for p in left)
            self.do_without("end of the job", f"these processes could not be ended: {pids}")

    # End

    def finish(self, code: int) -> JobEnd:
        """What remains when the job's first process has ended with `code` (negative: signal)."""
        self.wait_for_output()
        self.end_orphaned_ranks()
        self.stop_agent()
        self.ended_by_us = self.ended_by_us or (self.is_condemned and code != 0)
        if self.ended_by_us and not self._had_no_ranks and ended_well_before(self.run_dir, self.job_file["aborted_ns"]):
            self.ended_by_us, code = False, max(code, 0)  # we came too late: only the launcher was still there
        if not self.ended_by_us:
            self.job_file.pop("aborted_ns", None)
        if code == 0 and not (self.ended_by_us or self._had_orphans):
            withdraw_verdict(self.run_dir)
        if self.relay:
            self.relay.stop_log()
        exit_code = 128 - code if code < 0 else code
        if self.ended_by_us:
            exit_code = HUNG_EXIT_CODE
        elif self.interrupted_twice:
            exit_code = 128 + signal.SIGINT
        self.job_file |= {"ended_ns": time.time_ns(), "exit_code": exit_code, "ended_by_us": self.ended_by_us}
        line = self.joint_line if self.ended_by_us else self.crash_elsewhere if code else ""
        self.job_file |= {"interrupted_by": self.interrupted_by, "judged_elsewhere": line}
        self.write_job_file()
        is_interrupt = not self.ended_by_us and (self.interrupted_twice or code == -signal.SIGINT)
        return JobEnd(exit_code, self.ended_by_us, self.interrupted_by, is_interrupt, line)

    def wait_until_reaped(self, pid: int, timeout_s: float) -> int | None:
        """The exit status of a child, None if it still runs.

        Blocks: up to `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        self.reap()
        while pid not in self.statuses and (left_s := deadline - time.monotonic()) > 0:
            signal.sigtimedwait({signal.SIGCHLD}, min(left_s, TICK_S))
            self.reap()
            self.read_agent(is_finishing=True)
        return self.statuses.get(pid)

    def wait_for_output(self) -> None:
        """Waits for the end of the output, but at most a second: a daemon of the user may hold the pipe for ever."""
        if self.relay:
            status = self.wait_until_reaped(self.relay.pid, OUTPUT_WAIT_S)
            if status is not None and os.waitstatus_to_exitcode(status) == LOG_INCOMPLETE:
                self.absent.append({"what": "output.log", "reason": "it could not be written to its end"})

    def end_orphaned_ranks(self) -> None:
        """Ends training processes that outlived their launcher. Whatever else the job left behind is the user's."""
        orphans = rank_pids(self.run_dir) & {p.pid for p in JobTree(os.getpid(), self._spared).members()}
        self._had_orphans = bool(orphans)
        if orphans:
            say(f"{len(orphans)} training process{'es' * (len(orphans) > 1)} outlived the launcher: ended")
            self.end_processes(sorted(orphans))

    def stop_agent(self) -> None:
        """Asks the watcher to finish, and ends it if it does not."""
        if self.agent is None:
            return
        self.agent.order_end()
        limit_s = JOINED_WAIT_S if self.options.join else AGENT_WAIT_S
        if self.wait_until_reaped(self.agent.pid, limit_s) is None:
            self.absent.append({"what": "watcher", "reason": f"it did not finish within {limit_s:g} s"})
            with suppress(ProcessLookupError):
                os.kill(self.agent.pid, signal.SIGKILL)
            self.wait_until_reaped(self.agent.pid, 1)
        elif code := os.waitstatus_to_exitcode(self.statuses[self.agent.pid]):
            self.absent.append({"what": "watcher", "reason": f"it failed at the end ({code}), see agent.log"})
        self.read_agent(is_finishing=True)

    def write_job_file(self) -> None:
        """Writes what is known by now."""
        write_job_file(self.run_dir, {**self.job_file, "absent": self.absent})


def run_job(command: Sequence[str], options: RunOptions, run_dir: Path, facts: Mapping[str, Any]) -> JobEnd:
    """Runs `command` under the watcher. `run_dir` exists and is ours alone; `facts` go into its `job.json`.

    Blocks: as long as the job.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: else the next pipe would get this number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    return Supervisor(options, run_dir, facts).run(command)
