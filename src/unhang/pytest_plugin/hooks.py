"""What pytest sees: options, the fixture `run_ranks`, the marker `no_unhang`; with `--unhang` a watch over the jobs that tests start themselves.

Nothing else of ours is imported until one of them is used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unhang.pytest_plugin.ranks import RunRanks, Verdict

_POLL_S = 0.1
_END_S = 15.0  # ending a hung job takes up to 8 s, and the last look of the watcher before it a few
_KNOWS_NEW_NAME = (2, 10)
_STASH = pytest.StashKey["_Watch"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, and the settings of the ini file."""
    group = parser.getgroup("unhang", "distributed tests that hang (unhang)")
    group.addoption(
        "--unhang",
        action="store_true",
        help="Watch the distributed jobs that tests start (mp.spawn, torchrun); one that hangs is ended, and its test fails with the reason.",
    )
    group.addoption(
        "--unhang-reports", metavar="DIR", help="Leave the reports of failed tests there [pytest's temporary folder]."
    )
    parser.addini("unhang_timeout", "Seconds that one call of run_ranks may take.", default="300")
    parser.addini("unhang_abort_after", "End a job that only seems to hang after so many seconds.", default="60")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and with --unhang the watch over jobs."""
    config.addinivalue_line("markers", "no_unhang: 'pytest --unhang' leaves the jobs of this test alone")
    if config.getoption("--unhang"):
        config.pluginmanager.register(Watching(config), "unhang-watching")


@pytest.fixture
def run_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """`run_ranks(fn, 4, *args)`: runs fn(*args) in 4 ranks and returns their results, rank 0 first."""
    from unhang.pytest_plugin.ranks import RunRanks

    return RunRanks(
        reports=reports_of(request.config, tmp_path_factory),
        name=request.node.name,
        timeout_s=seconds_of(request.config, "unhang_timeout"),
        abort_after_s=seconds_of(request.config, "unhang_abort_after"),
    )


def reports_of(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """The folder below which reports are left."""
    chosen = config.getoption("--unhang-reports")
    return config.invocation_params.dir / chosen if chosen else factory.mktemp("unhang")


def seconds_of(config: pytest.Config, name: str) -> float:
    """A setting of the ini file.

    Raises:
        UsageError: it is no positive number.
    """
    text = str(config.getini(name))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise pytest.UsageError(f"{name} = {text!r} is not a positive number of seconds")
    return value


class Watching:
    """The hooks. Each test gets a watch of its own, which costs a thread until a rank appears."""

    def __init__(self, config: pytest.Config) -> None:
        self._abort_after_s = seconds_of(config, "unhang_abort_after")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begins the watch before the fixtures of the test."""
        from unhang.errors import UnhangError

        if item.get_closest_marker("no_unhang") is None:
            try:
                item.stash[_STASH] = _Watch(self._abort_after_s)
            except (OSError, UnhangError) as error:
                item.add_report_section("setup", "unhang", f"the jobs of this test are not watched: {error}")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Ends it after them."""
        try:
            return (yield)
        finally:
            if watch := item.stash.get(_STASH, None):
                watch.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Adds the verdict where a job hung, or where a test with a job failed."""
        from unhang.pytest_plugin.ranks import folder_for

        report = yield
        watch = item.stash.get(_STASH, None)
        if watch is not None and not watch.is_told and (watch.ended_a_hang() or (report.failed and watch.has_ranks)):
            watch.is_told = True
            factory = item.config._tmp_path_factory  # type: ignore[attr-defined]
            self._tell(report, watch, folder_for(reports_of(item.config, factory), item.name))
        return report

    def _tell(self, report: pytest.TestReport, watch: _Watch, folder: Path) -> None:
        from unhang.pytest_plugin.ranks import Verdict

        try:
            verdict = watch.judge(folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide the test's own failure
            report.sections.append(("unhang", f"the diagnosis failed ({type(error).__name__}: {error})"))
            verdict = Verdict("a distributed job hung and was ended", "") if watch.was_hung else None
        if verdict is None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        text = f"{verdict.text}\nreport: {folder / 'report.html'}"
        if report.passed:  # the test took no notice of the end of its job
            report.outcome, report.longrepr = "failed", text
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and watch.was_hung:
            crash.message = verdict.headline
        if (add_section := getattr(report.longrepr, "addsection", None)) is not None:
            add_section("unhang", text)
        else:
            report.longrepr = f"{report.longrepr}\n{text}"


def _torch_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (0,)


class _Watch:
    """The watch over the jobs of one test. The ranks find the run directory in the environment, as below `unhang run`."""

    def __init__(self, abort_after_s: float) -> None:
        from unhang.watch import OLD_BUFFER_SIZE_NAME, job_environment
        from unhang.watch.folders import hold, make_run_dir

        self.run_dir = make_run_dir()
        self._lock = hold(self.run_dir)
        self._abort_after_s = abort_after_s
        self._job: dict[str, Any] = {"command": sys.argv, "cwd": os.getcwd()}
        wanted = job_environment(os.environ, self.run_dir, os.getpid())
        if _torch_version() >= _KNOWS_NEW_NAME:
            wanted.pop(OLD_BUFFER_SIZE_NAME)  # a torch that is here already warns of it
        self._before = {name: os.environ.get(name) for name in wanted if os.environ.get(name) != wanted[name]}
        os.environ.update({name: wanted[name] for name in self._before})
        self._stop = threading.Event()
        self.was_hung = self.is_told = False
        self._verdict_came = threading.Event()
        self._watcher: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="unhang-watching", daemon=True)
        self._thread.start()

    @property
    def has_ranks(self) -> bool:
        """Whether a rank has registered."""
        return (self.run_dir / "ranks").is_dir()

    def ended_a_hang(self) -> bool:
        """Whether a hung job of the test was ended. Blocks: while that is going on, up to 15 s."""
        if self._verdict_came.is_set():
            self._thread.join(_END_S)
        return self.was_hung

    def _run(self) -> None:
        """In the thread; what goes wrong in it must not fail the test."""
        with suppress(OSError, ValueError):
            self._watch()

    def _watch(self) -> None:
        """Starts the watcher when a rank has registered, and does what it says."""
        while not self.has_ranks:
            if self._stop.wait(_POLL_S):
                return
        self._job["started_ns"] = time.time_ns()  # what the test has written by now is the code that the job runs
        self._write_job_file()
        words = (self.run_dir, os.getpid(), f"{self._abort_after_s:g}")
        command = [sys.executable, "-m", "unhang.pytest_plugin.launcher", "watch", *map(str, words)]
        with (self.run_dir / "agent.log").open("ab") as log:
            self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._watcher.stdout is not None
        for line in self._watcher.stdout:  # ends with the watcher
            message = json.loads(line)
            if message.get("event") == "verdict" and message.get("end") and not self.was_hung:
                self._verdict_came.set()
                self._end_ranks()

    def _end_ranks(self) -> None:
        from unhang.watch.process_tree import descendants_of, end, rank_pids

        ours = rank_pids(self.run_dir)
        left = [process for process in descendants_of(os.getpid()) if process.pid in ours]
        if left:
            self.was_hung = True
            self._job |= {"aborted_ns": time.time_ns(), "ended_by_us": True, "exit_code": 124}
            self._write_job_file()
            end(lambda: [process for process in descendants_of(os.getpid()) if process in left])

    def _write_job_file(self) -> None:
        from unhang.watch.folders import write_job_file

        write_job_file(self.run_dir, self._job)

    def judge(self, folder: Path) -> Verdict | None:
        """Stops the watcher, moves the evidence to `folder` and judges it; None where nothing is found in it."""
        from unhang.diagnosis import judge_paths
        from unhang.pytest_plugin.ranks import read_verdict
        from unhang.show import write_reports
        from unhang.watch.folders import save_bundle

        self._stop_watcher()
        self._write_job_file()
        judged = judge_paths([save_bundle(self.run_dir, folder, lambda text: None)])
        if not judged.diagnosis.findings and not self.was_hung:
            return None
        write_reports(judged, folder)
        return read_verdict(folder)

    def _stop_watcher(self) -> None:
        self._stop.set()
        self._thread.join(0 if self._watcher else 5)
        if self._watcher is None:
            return
        if self._watcher.stdin:
            with suppress(OSError):
                self._watcher.stdin.close()
        try:
            self._watcher.wait(5)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        self._thread.join(_END_S)

    def close(self) -> None:
        """Takes everything back: the environment, the watcher, the run directory."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._stop_watcher()
        with suppress(OSError):
            os.close(self._lock)
        shutil.rmtree(self.run_dir, ignore_errors=True)
