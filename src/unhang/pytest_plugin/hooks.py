"""What pytest sees: options, the fixture `run_ranks`, the marker `no_unhang`. Nothing else of ours is imported until one of them is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unhang.pytest_plugin.ranks import RunRanks


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
        from unhang.pytest_plugin.watching import Watching

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
