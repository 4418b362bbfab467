from __future__ import annotations

from pathlib import Path

import pytest

from unhang.watch import (
    BOOTSTRAP,
    chain_bootstrap,
    debug_nccl,
    job_environment,
    parse_seconds,
    parse_variable,
    read_options,
)


def test_defaults() -> None:
    options = read_options({}, pytest.fail)
    assert (options.stall_after_s, options.abort_after_s, options.on_hang) == (None, None, "abort")
    assert options.report_dir.parent == Path("unhang-reports")
    assert options.has_default_report_dir


ENV = {
    "UNHANG_STALL_AFTER": "7.5",
    "UNHANG_ABORT_AFTER": "60",
    "UNHANG_ON_HANG": "report",
    "UNHANG_REPORT_DIR": "/reports",
}


def test_the_environment_counts_more_than_the_default() -> None:
    options = read_options(ENV, pytest.fail)
    assert (options.stall_after_s, options.abort_after_s, options.on_hang) == (7.5, 60, "report")
    assert options.report_dir == Path("/reports")
    assert not options.has_default_report_dir


def test_the_command_line_counts_most() -> None:
    options = read_options(
        {**ENV, "UNHANG_STALL_AFTER": "abc"},
        pytest.fail,
        report_dir=Path("here"),
        stall_after_s=1,
        abort_after_s=2,
        on_hang="abort",
    )
    assert options.as_json() == {"report_dir": "here", "stall_after_s": 1, "abort_after_s": 2, "on_hang": "abort"}


@pytest.mark.parametrize("value", ["abc", "-5", "nan", "inf", "0", "1e999"])
def test_nonsense_in_the_environment_is_ignored_with_one_line(value: str) -> None:
    lines: list[str] = []
    options = read_options({"UNHANG_STALL_AFTER": value, "UNHANG_ABORT_AFTER": value}, lines.append)
    assert (options.stall_after_s, options.abort_after_s) == (None, None)
    assert lines == [
        f"UNHANG_STALL_AFTER={value!r} is ignored: it is not a positive number of seconds",
        f"UNHANG_ABORT_AFTER={value!r} is ignored: it is not a positive number of seconds",
    ]


def test_an_unknown_action_is_ignored_and_an_empty_one_is_none() -> None:
    lines: list[str] = []
    assert read_options({"UNHANG_ON_HANG": "kill", "UNHANG_ABORT_AFTER": ""}, lines.append).on_hang == "abort"
    assert lines == ["UNHANG_ON_HANG='kill' is ignored: it is neither abort nor report"]


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "nan", "-inf"])
def test_no_number_of_seconds(text: str) -> None:
    with pytest.raises(ValueError, match=r"seconds|could not convert"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ("2000", "2000")),
        ({"TORCH_FR_BUFFER_SIZE": "7"}, ("7", "7")),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, ("9", "9")),
        ({"TORCH_FR_BUFFER_SIZE": "7", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, ("7", "9")),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, ("0", "0")),
    ],
)
def test_the_size_of_the_flight_recorder_is_the_users(env: dict[str, str], expected: tuple[str, str]) -> None:
    job = job_environment(env, Path("/run"), 1)
    assert (job["TORCH_FR_BUFFER_SIZE"], job["TORCH_NCCL_TRACE_BUFFER_SIZE"]) == expected


def test_the_environment_of_the_job() -> None:
    job = job_environment({"PYTHONPATH": "/a:/b", "HOME": "/home"}, Path("/run"), 42)
    assert job["PYTHONPATH"] == f"{BOOTSTRAP}:/a:/b"
    assert (job["UNHANG_RUN_DIR"], job["UNHANG_TRACER_PID"], job["HOME"]) == ("/run", "42", "/home")
    assert job_environment({}, Path("/run"), 42)["PYTHONPATH"] == str(BOOTSTRAP)  # no empty entry: that is the cwd
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in job


def test_variables_of_the_command_line_reach_the_job_alone() -> None:
    env = job_environment({"NCCL_DEBUG": "WARN", "A": "1"}, Path("/run"), 1, {"NCCL_DEBUG": "INFO", "B": "2"})
    assert (env["NCCL_DEBUG"], env["A"], env["B"]) == ("INFO", "1", "2")
    assert parse_variable("NAME=a=b") == ("NAME", "a=b")
    assert parse_variable("NAME=") == ("NAME", "")
    for wrong in ("NAME", "=x", "9A=1", "A B=1", ""):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parse_variable(wrong)


def test_what_nccl_says_goes_beside_the_evidence() -> None:
    assert debug_nccl(Path("/run"))["NCCL_DEBUG_FILE"] == "/run/nccl.%h.%p.log"


def test_a_pythonpath_of_the_command_itself_comes_behind_the_recorder() -> None:
    assert chain_bootstrap(["env", "A=1", "PYTHONPATH=libs", "python", "train.py", "PYTHONPATH=x"]) == [
        *("env", "A=1", f"PYTHONPATH={BOOTSTRAP}:libs", "python", "train.py", "PYTHONPATH=x")
    ]
    assert chain_bootstrap(["mpirun", "-x", "PYTHONPATH=", "python"])[2] == f"PYTHONPATH={BOOTSTRAP}"
    plain = ["bash", "-c", "PYTHONPATH=libs python train.py"]
    assert chain_bootstrap(plain) == plain
