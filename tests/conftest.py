"""For all tests: the signals that the shell ignores are not ignored by their jobs, and a busy machine gets more time."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

from tests import costs
from tests.lanes import JOB_FOLDERS, Lanes, in_lanes
from tests.rewriting import rewrite_once
from tests.slowness import slowness

_OF_JOBS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def pytest_configure(config: pytest.Config) -> None:
    """Undoes `nohup` and a script's background for the jobs, by handlers that do nothing: this process still ignores the signals.

    Not where xdist's workers run the tests: they inherit, and do so themselves.
    """
    hypothesis.settings.register_profile("any machine", deadline=None, derandomize=not os.environ.get("UNHANG_FUZZ"))
    hypothesis.settings.load_profile("any machine")
    if config.getoption("numprocesses", None):
        rewrite_once(config)
        return
    if os.environ.get(costs.VARIABLE):
        config.pluginmanager.register(costs, "costs")
    ignored = [number for number in _OF_JOBS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: [signal.signal(number, signal.SIG_DFL) for number in ignored])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets several workers share the tests well, and runs a test of real jobs once more where it fails: both are listed.

    Hundreds of real jobs share two cores for minutes; `--fail-on-flaky` takes each such failure for what it is.
    """
    for item in items:
        if item.nodeid.startswith(JOB_FOLDERS):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        items[:] = in_lanes(items)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the collector of garbage need not look at them again and again."""
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes | None:
    """For `--dist loadscope`."""
    return Lanes(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Sets the test's time limit before pytest-timeout reads it."""
    give_time(item)
    return (yield)


def give_time(item: pytest.Item) -> None:
    """Lets the time limit grow with the slowness of the machine."""
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker else float(item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(limit_s * slowness()), append=False)
