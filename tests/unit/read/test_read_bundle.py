"""Run directories and mixtures of files -> one Case."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import made_dumps
import pytest
from made_dumps import dump, entry
from test_read_texts import ASKED, FATAL, RECORDS, made_page

from unhang.errors import NothingToJudge, UnreadableInput
from unhang.model import CallState, Case, Frame
from unhang.read import read_bundle, read_paths
from unhang.read.launchers import ended_by_signal
from unhang.read.rank_folder import raised_error

S = 10**9
T0 = 1_795_000_000 * S
TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"
CLOSED = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"


def write(folder: Path, **files: object) -> Path:
    """`proc_json={...}` -> proc.json; a list of objects for .jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif name.endswith("_jsonl"):
            path.write_text("".join(json.dumps(line) + "\n" for line in content))
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def rank(run: Path, number: int, pid: int = 0, **files: object) -> Path:
    pid = pid or 100 + number
    identity = {"rank": number, "world_size": 2, "pid": pid, "backend": "gloo", "torch_version": "2.13", "host": "a"}
    identity |= {"started_ns": T0 + S, "main_thread_id": 0x7F7634C45B80} | files.pop("identity", {})
    return write(run / "ranks" / f"r{number}-{pid}", identity_json=identity, **files)


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", job_json={"command": ["python", "t.py"], "started_ns": T0, "exit_code": 7})


def absences(case: Case) -> dict[str, str]:
    return {a.what: a.reason for a in case.absent}


def test_real_gloo_job(gloo_job):
    case = read_bundle(gloo_job)
    assert (case.job.world_size, case.job.backend, case.job.command) == (2, "gloo", ("python", "train.py"))
    assert [(g.desc, g.ranks, g.timeout_s) for g in case.groups] == [
        ("default_pg", (0, 1), 1800.0),
        ("pair", (0, 1), 1800.0),
    ]
    left = list(case.calls.calls_of(1))
    assert [c.op for c in left] == ["all_reduce", "all_reduce", "all_to_all", "barrier"]
    assert {c.state for c in left} == {CallState.COMPLETED}
    assert [str(c.group) for c in left] == ["default_pg", "pair", "default_pg", "default_pg"]
    failed = list(case.calls.calls_of(0))[-1]
    assert (failed.op, failed.in_sizes, failed.dtype, failed.seq) == ("all_reduce", ((7,),), "Long", 4)
    assert failed.state is CallState.FAILED
    assert any(f.file.endswith("job.py") and f.function == "run" for f in failed.frames)
    assert case.ranks[0].error is not None
    assert case.present[0] == "9 calls of 2 ranks, with call paths"
    assert read_bundle(gloo_job, trusted=True).present == case.present


def test_everything_of_one_rank(run):
    pyspy = [
        {"pid": 100, "os_thread_id": 100, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "t.py"}]}
    ]
    error = {"type": "ValueError", "message": "bad", "time_ns": T0 + 5 * S, "thread": "MainThread"}
    error["frames"] = [["/home/me/t.py", 3, "f"], "damaged"]
    proc = {"state": "S", "cpu_share": 0.5, "wchan": "futex", "open_fds": 9, "taken_ns": T0 + 20 * S, "died_ns": None}
    rank(
        run,
        0,
        page_bin=made_page((100, 3 * S, 12, T0, 3, T0 + 15 * S, 302, 1), RECORDS),
        pyspy_json=pyspy,
        faulthandler_txt=ASKED,
        error_json={**error, "parameters": ["w", 3]},
        handled_jsonl=[{**error, "handler": ["/home/me/t.py", 9, "main"]}],
        proc_json={**proc, "taken_monotonic_ns": 5 * S},
        groups_jsonl=[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "timeout_s": 60, "backend": "gloo"}],
        notes_jsonl=[{"what": "flight recorder", "reason": "switched off by the user"}],
    )
    write(
        run, verdict_json={"kind": "proven", "onset_ns": T0 + 9 * S, "detected_ns": T0 + 11 * S, "waiting_ranks": [1]}
    )
    write(run, launcher_json=pyspy, output_log=b"[rank0]: hello\n")
    case = read_bundle(run)
    seen = case.ranks[0]
    assert (seen.steps, seen.phase, seen.initialized) == (12, "backward", True)
    assert seen.heartbeat_age_s == 2.0
    assert [p.kind for p in seen.pending] == ["store_wait", "irecv", "isend"]
    assert (seen.main_stack.source.reader, seen.main_stack.frames) == ("py-spy", (Frame("t.py", 0, "f"),))
    assert (seen.state.state, seen.state.cpu_share, seen.state.rss_bytes) == ("S", 0.5, None)
    assert (seen.error.type, seen.error.frames) == ("ValueError", (Frame("/home/me/t.py", 3, "f"),))
    assert seen.error.parameters == ("w",)
    assert (seen.handled[0].handled, seen.handled[0].handler) == (True, Frame("/home/me/t.py", 9, "main"))
    assert seen.exit is None
    assert (case.hang.onset_s, case.hang.detected_after_s, case.hang.waiting_ranks) == (9.0, 2.0, (1,))
    assert (case.job.exit_code, case.job.torch_version, case.job.nodes) == (7, "2.13", 1)
    assert (case.launcher_stacks[0].name, case.log[0].rank) == ("MainThread", 0)
    assert absences(case)["calls of rank 0"] == "switched off by the user"
    assert absences(case)["rank 1"] == "no process and no file of it was seen"
    assert case.world == (0, 1)
    assert "stacks of 1 rank (py-spy)" in case.present


@pytest.mark.parametrize(
    ("job", "verdict", "told"),
    [
        ({"started_ns": T0}, {"onset_ns": T0 + 9 * S, "detected_ns": T0 + 11 * S}, (9.0, 2.0)),
        ({"started_ns": T0}, {"detected_ns": T0 + 11 * S}, (None, None)),
        ({"started_ns": T0}, {"onset_ns": T0 + 9 * S}, (9.0, None)),
        ({"command": ["x"]}, {"onset_ns": T0 + 9 * S, "detected_ns": T0 + 11 * S}, (None, 2.0)),
    ],
)
def test_what_no_clock_told_is_unknown(tmp_path, job, verdict, told):
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "verdict.json").write_text(json.dumps({"kind": "proven", **verdict}))
    hang = read_bundle(tmp_path).hang
    assert (hang.onset_s, hang.detected_after_s) == told


def test_files_that_are_empty_cut_or_garbage_cost_only_themselves(run):
    names = ("groups_jsonl", "page_bin", "error_json", "exit_json", "proc_json", "pyspy_json", "flight_pickle")
    names += ("flight_json", "flight_exit_pickle", "handled_jsonl", "notes_jsonl", "faulthandler_txt")
    for number, content in enumerate((b"", b'{"rank": 3, "fra', b"\x80\x02}q\x00(X", b"\0" * 5000, b"[]", b"\xff\xfe")):
        rank(run, number, **dict.fromkeys(names, content), identity={"world_size": 6})
    (run / "ranks" / "r0-100" / "identity.json").write_text("{")
    write(run, verdict_json="{", output_log=b"", launcher_json=b"{}")
    rank(run, 5, flight_json=made_dumps.as_json(dump([entry(0)])))
    case = read_bundle(run)
    assert sorted(case.ranks) == list(range(6))
    assert case.calls["rank"].tolist() == [5]
    assert case.ranks[0].identity.pid == 100


@pytest.mark.parametrize(
    ("files", "log", "expected"),
    [
        ({}, "", None),
        ({"proc_json": {"died_ns": 5, "exit_code": -9}}, "", ("signal", -9, 5)),
        ({"proc_json": {"died_ns": 5, "exit_code": 3}}, "", ("exit", 3, 5)),
        ({"proc_json": {"died_ns": 5, "exit_code": None}}, "", ("vanished", None, 5)),
        ({"proc_json": {"state": "Z"}}, "", ("vanished", None, 0)),
        ({"faulthandler_txt": FATAL, "exit_json": {"kind": "exit", "code": 0}}, "", ("signal", -6, 0)),
        ({"exit_json": {"kind": "os._exit", "code": 4, "time_ns": 8}}, "", ("os._exit", 4, 8)),
        ({"exit_json": {"kind": "os._exit", "code": 4}, "proc_json": {"exit_code": -9}}, "", ("signal", -9, 0)),
        ({"exit_json": {"kind": "exit", "code": None, "time_ns": 8}}, "", ("exit", None, 8)),
        ({"exit_json": {"kind": "exit"}, "error_json": {"type": "E", "thread": "MainThread"}}, "", ("exit", 1, 0)),
        ({"exit_json": {"kind": "sys.exit", "code": 2, "time_ns": 8}}, "", ("exit", 2, 8)),
        ({"exit_json": {"kind": "exit", "time_ns": 8}, "proc_json": {"exit_code": 5}}, "", ("exit", 5, 8)),
        ({}, "process 0 terminated with signal SIGSEGV", ("signal", -11, 0)),
        ({}, "process 0 terminated with exit code 2", ("exit", 2, 0)),
        ({"page_bin": made_page((1,) + (0,) * 7 + (1,))}, "", ("exit", None, 0)),
    ],
)
def test_how_a_process_ended(run, files, log, expected):
    rank(run, 0, **files)
    write(run, output_log=log)
    ended = read_bundle(run).ranks[0].exit
    assert (ended and (ended.kind, ended.code, ended.time_ns)) == expected


def test_sys_exit_keeps_its_frames_and_a_fatal_signal_its_stack(run):
    rank(run, 0, exit_json={"kind": "sys.exit", "code": 2, "frames": [["t.py", 1, "f"]]}, proc_json={"exit_code": 2})
    rank(run, 1, faulthandler_txt=ASKED + FATAL, pyspy_json=[{"frames": []}])
    case = read_bundle(run)
    assert case.ranks[0].exit.frames == (Frame("t.py", 1, "f"),)
    assert (case.ranks[1].exit.text, case.ranks[1].exit.frames[0].line) == ("Aborted", 5)
    assert case.ranks[1].main_stack.source.reader == "faulthandler"


def test_stacks_come_from_faulthandler_where_pyspy_may_not(run):
    rank(run, 0, faulthandler_txt=ASKED.replace("line 5", "line 4") + ASKED)
    assert read_bundle(run).ranks[0].main_stack.frames[0].line == 5


def gloo(number, retired, **more):
    return entry(number, "gloo:all_reduce", state="scheduled", retired=retired, **more)


def with_failure(run, message):
    error = {"type": "RuntimeError", "message": message, "time_ns": T0 + 60 * S, "frames": [[TORCH, 3, "all_reduce"]]}
    rank(
        run,
        0,
        error_json=error,
        flight_json=made_dumps.as_json(dump([gloo(0, True), gloo(1, False), gloo(2, False)])),
        flight_exit_pickle=made_dumps.pickled(dump([gloo(0, True), gloo(1, True), gloo(2, True)])),
    )
    return list(read_bundle(run).calls.calls_of(0))


def test_dumps_before_and_after_a_failure(run):
    before, waiting, failed = with_failure(run, CLOSED)
    assert (before.state, waiting.state, failed.state) == (CallState.COMPLETED, CallState.SCHEDULED, CallState.FAILED)
    assert waiting.frames is not None


def test_an_error_of_the_program_leaves_the_later_dump_right(run):
    assert {c.state for c in with_failure(run, "bad batch")} == {CallState.COMPLETED}


def test_what_happens_while_we_end_the_job_is_no_evidence(run):
    verdict = {"kind": "proven", "onset_ns": T0 + 40 * S, "detected_ns": T0 + 50 * S}
    write(run, job_json={"started_ns": T0, "ended_by_us": True, "ended_ns": T0 + 70 * S}, verdict_json=verdict)
    write(run, output_log=b"[rank0]: hello\nfailed (exitcode: -15) local_rank: 1 (pid: 101) of binary: x\n")
    rank(run, 1, proc_json={"state": "S", "died_ns": T0 + 61 * S, "exit_code": -15})
    assert [c.state for c in with_failure(run, CLOSED)] == [
        CallState.COMPLETED,
        CallState.SCHEDULED,
        CallState.SCHEDULED,
    ]
    case = read_bundle(run)
    assert case.ranks[0].error is None
    assert case.ranks[1].exit is None
    assert (case.ranks[1].state.state, case.job.ended_by_us) == ("S", True)


FELT = 'Thread 0x0000000000000001 (most recent call first):\n  File "/app/train.py", line 8 in rest\n'


def interrupted(run, **files):
    """A job that Ctrl-C ended at T0 + 50 s, and what lies in the folder of its rank 0."""
    ends = {"ended_ns": T0 + 52 * S, "exit_code": 130, "interrupted_by": "SIGINT", "interrupted_ns": T0 + 50 * S}
    write(run, job_json={"started_ns": T0, "ended_by_us": False, **ends})
    rank(run, 0, **files)
    return read_bundle(run).ranks[0]


def test_what_a_signal_does_to_a_rank_is_no_evidence(run):
    """Also where the rank had it, and had left, a moment before a busy supervisor noticed it."""
    exits = {"kind": "exit", "code": None, "time_ns": T0 + 50 * S - 500_000}
    died = {"state": "gone", "died_ns": T0 + 51 * S, "exit_code": -2}
    evidence = interrupted(run, exit_json=exits, proc_json=died, interrupt_txt=FELT)
    assert (evidence.exit, evidence.error) == (None, None)
    assert evidence.main_stack.frames[0].line == 8


def test_what_a_signal_does_to_a_rank_that_was_not_ready_for_it_is_no_evidence_either(run):
    """It came before the recorder could mark it: the end by that signal, or a peer that is gone, is mark enough."""
    died = {"state": "gone", "died_ns": T0 + 49 * S + 900_000_000, "exit_code": -2}
    assert interrupted(run, proc_json=died).exit is None
    error = {"type": "RuntimeError", "message": CLOSED, "time_ns": T0 + 49 * S + 900_000_000, "frames": []}
    rank(run, 1, error_json=error, proc_json=died | {"exit_code": 1})
    evidence = read_bundle(run).ranks[1]
    assert (evidence.error, evidence.exit) == (None, None)


def test_what_a_rank_did_before_the_signal_is(run):
    error = {"type": "ValueError", "message": "a bad sample", "time_ns": T0 + 49 * S, "frames": []}
    died = {"state": "gone", "died_ns": T0 + 49 * S + 1, "exit_code": 1}
    evidence = interrupted(run, error_json=error, proc_json=died)
    assert (evidence.error.type, evidence.exit.code) == ("ValueError", 1)


def test_a_moment_before_we_ended_the_job_is_evidence(run):
    """Our own signal leaves its mark in each rank as well, but its moment is known."""
    write(run, job_json={"started_ns": T0, "aborted_ns": T0 + 50 * S, "exit_code": 124, "ended_by_us": True})
    error = {"type": "ValueError", "message": "a bad sample", "time_ns": T0 + 49 * S, "frames": []}
    exits = {"kind": "exit", "code": None, "time_ns": T0 + 49 * S}
    rank(run, 0, handled_jsonl=[error], interrupt_txt=FELT)
    rank(run, 1, error_json=error, exit_json=exits, interrupt_txt=FELT)
    ranks = read_bundle(run).ranks
    assert [e.message for e in ranks[0].handled] == ["a bad sample"]
    assert (ranks[1].error.type, ranks[1].exit.kind) == ("ValueError", "exit")


def test_the_last_attempt_counts(run):
    for restart in (0, 1):
        rank(run, 0, 100 + restart, identity={"restart": restart}, exit_json={"kind": "exit", "code": restart})
    case = read_bundle(run)
    assert (case.ranks[0].identity.restart, case.ranks[0].exit.code) == (1, 1)
    assert [(c.attempt, c.ranks[0].identity.pid, c.ranks[0].exit.code) for c in case.earlier] == [(0, 100, 0)]
    assert case.attempt == 1


def started(number: int, second: float, ended: float | None = None, code: int = 1, **more: object) -> dict[str, object]:
    """What is written of a process that started, and ended, so many seconds after T0."""
    proc = {} if ended is None else {"proc_json": {"died_ns": T0 + int(ended * S), "exit_code": code, "state": "gone"}}
    return {"identity": {"started_ns": T0 + int(second * S), "world_size": number, **more}, **proc}


def test_attempts_without_a_launchers_count_are_told_apart_by_time(run):
    """A program that starts its ranks again by itself. Rank 2 had not come in the first attempt, rank 0 not in the second."""
    rank(run, 0, 100, **started(3, 1, 5))
    rank(run, 1, 101, **started(3, 1, 5))
    rank(run, 1, 111, **started(3, 8))
    rank(run, 2, 112, **started(3, 8))
    case = read_bundle(run)
    assert {r: e.identity.pid for r, e in case.ranks.items()} == {1: 111, 2: 112}
    assert [{r: e.identity.pid for r, e in c.ranks.items()} for c in case.earlier] == [{0: 100, 1: 101}]


def test_a_rank_that_goes_on_while_another_is_started_again_is_of_the_last_attempt(run):
    rank(run, 0, 100, **started(2, 1))
    rank(run, 1, 101, **started(2, 1, 5))
    rank(run, 1, 111, **started(2, 8))
    case = read_bundle(run)
    assert {r: e.identity.pid for r, e in case.ranks.items()} == {0: 100, 1: 111}
    assert [sorted(c.ranks) for c in case.earlier] == [[1]]


def test_two_processes_of_a_rank_at_once_are_no_attempts(run):
    """A helper that inherits RANK and makes a group of its own."""
    rank(run, 0, 100, **started(1, 1))
    rank(run, 0, 101, **started(1, 3))
    case = read_bundle(run)
    assert (case.attempt, case.earlier, case.ranks[0].identity.pid) == (0, (), 101)
    assert absences(case)["process 100 of rank 0"] == "another process of this rank started while it ran"


def test_a_program_that_a_rank_starts_is_not_the_rank(run):
    """It has the RANK of the one that started it, which has been in the group for long."""
    seen = [
        {"pid": 101, "os_thread_id": 101, "thread_name": "MainThread", "frames": [{"name": "f", "filename": "t.py"}]}
    ]
    rank(run, 0, 100, page_bin=made_page((100, 0, 0, 0, 0, 0, 0, 1)), pyspy_json=seen, **started(1, 1))
    rank(run, 0, 101, page_bin=made_page((101,)), **started(1, 3))
    case = read_bundle(run)
    assert case.ranks[0].identity.pid == 100
    assert absences(case)["process 101 of rank 0"] == "another process of this rank started while it ran"


def test_a_rank_that_left_early_is_no_attempt_of_its_own(run):
    rank(run, 0, 100, **started(2, 1, 2))
    rank(run, 1, 101, **started(2, 4))
    assert (read_bundle(run).attempt, sorted(read_bundle(run).ranks)) == (0, [0, 1])


LAUNCHER = "E1123 15:07:59 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {}) local_rank: {} (pid: {}) of binary: python"


def test_what_the_output_says_of_an_earlier_process_is_not_said_of_the_last(run):
    raised = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/train.py", line 3, in f\n[rank0]: OSError: gone\n'
    write(run, output_log=f"{raised}{LAUNCHER.format(1, 0, 100)}\nstep 1 loss 3.0\n")
    rank(run, 0, 100, **started(1, 1, 5, restart=0))
    rank(run, 0, 101, **started(1, 8, restart=1))
    case = read_bundle(run)
    assert (case.ranks[0].error, case.ranks[0].exit) == (None, None)
    assert [line.text for line in case.log] == ["step 1 loss 3.0"]
    (before,) = case.earlier
    assert (before.ranks[0].error.text, before.ranks[0].exit.code) == ("OSError: gone", 1)


def test_where_no_launcher_speaks_the_size_of_the_output_tells_the_attempt(run):
    before = "epoch 0\nattempt 0 failed, trying again\n"
    write(run, output_log=f"{before}epoch 0\n")
    rank(run, 0, 100, **started(1, 1, 5, output_bytes=0))
    rank(run, 0, 101, **started(1, 8, output_bytes=len(before)))
    case = read_bundle(run)
    assert ([x.source.line for x in case.log], [x.source.line for x in case.earlier[0].log]) == ([3], [1, 2])


def test_a_hang_is_of_the_attempt_in_which_it_was_seen(run):
    """Its own limit ended the first attempt, and the second one runs."""
    seen = {"kind": "suspected", "onset_ns": T0 + 2 * S, "detected_ns": T0 + 4 * S, "waiting_ranks": [0]}
    write(run, verdict_json=seen)
    rank(run, 0, 100, **started(1, 1, 5))
    rank(run, 0, 101, **started(1, 8))
    case = read_bundle(run)
    assert (case.hang, case.earlier[0].hang.kind) == (None, "suspected")


def test_an_exception_of_a_thread_is_survived_by_a_process_that_ended_with_0(run):
    error = {"type": "ValueError", "message": "x", "time_ns": T0, "frames": [], "thread": "writer"}
    rank(run, 0, 100, error_json=error, **started(1, 1, 5, code=0))
    rank(run, 1, 101, error_json=error, **started(1, 1, 5, code=1))
    ranks = read_bundle(run).ranks
    assert (ranks[0].error, ranks[0].handled[0].type, ranks[1].error.type) == (None, "ValueError", "ValueError")


def test_two_groups_of_one_name_stay_apart(run):
    """Only members create their group, so each pair calls its group 1."""
    for number in range(4):
        pair = [number // 2 * 2, number // 2 * 2 + 1]
        made = dump(
            [gloo(0, False, process_group=("1", "pair"))], pg_config={"": {"name": "", "desc": "", "ranks": "[]"}}
        )
        groups = [{"pg_name": "1", "pg_desc": "pair", "ranks": pair}]
        rank(run, number, identity={"world_size": 4}, groups_jsonl=groups, flight_pickle=made_dumps.pickled(made))
    case = read_bundle(run)
    assert [(g.name, g.ranks) for g in case.calls.groups] == [("1", (0, 1)), ("1@2-3", (2, 3))]
    assert case.calls["group"].tolist() == [0, 0, 1, 1]
    assert case.groups[: len(case.calls.groups)] == case.calls.groups


def anew(number, retired, **more):
    return gloo(
        8 + number, retired, pg_id=1, collective_seq_id=number + 1, time_created_ns=T0 + (9 + number) * S, **more
    )


def test_calls_of_a_group_that_was_destroyed_and_made_anew_are_of_another_group(run):
    """Rank 2 is not yet back: what it called before was called in the former group."""
    of_former = [gloo(n, True) for n in range(3)]
    made = {0: [*of_former, anew(0, True), anew(1, False)], 1: [*of_former[:2], anew(0, True)], 2: of_former}
    for number, calls in made.items():
        flight = made_dumps.pickled(dump(calls, ranks="[0, 1, 2]", pg_status={}))
        rank(run, number, identity={"world_size": 3}, flight_pickle=flight)
    case = read_bundle(run)
    assert {r: [c.seq for c in case.calls.calls_of(r)] for r in made} == {0: [1, 2], 1: [1], 2: []}


def test_two_backends_of_one_group_are_no_group_made_anew(run):
    both = [
        anew(0, True),
        gloo(9, True, pg_id=0, collective_seq_id=2),
        anew(2, True, process_group=("0", "default_pg")),
    ]
    backends = [gloo(0, True), entry(1, "nccl:all_reduce", pg_id=1, collective_seq_id=1)]
    rank(run, 0, flight_pickle=made_dumps.pickled(dump([gloo(0, True), *both], pg_status={})))
    rank(run, 1, flight_pickle=made_dumps.pickled(dump(backends, pg_status={})))
    assert [len(list(read_bundle(run).calls.calls_of(r))) for r in (0, 1)] == [4, 2]


def test_exceptions_come_from_the_output_where_the_recorder_has_none(run):
    rank(run, 0)
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nKeyError: {}\n'
    lines = (trace.format(1) + "going on\n" + trace.format(2)).splitlines()
    write(run, output_log="\n".join(f"[rank0]: {line}" for line in lines))
    case = read_bundle(run)
    assert (case.ranks[0].error.type, case.ranks[0].error.message) == ("KeyError", "2")
    assert [(e.message.split("\n")[0], e.handled) for e in case.ranks[0].handled] == [("1", True)]


def test_report_folder_and_rank_folder(run, tmp_path):
    folder = rank(run, 0, flight_json=made_dumps.as_json(dump([entry(0)])))
    report = tmp_path / "report"
    shutil.copytree(run, report / "bundle")
    assert read_bundle(report).calls["rank"].tolist() == [0]
    assert read_bundle(folder).calls["rank"].tolist() == [0]
    assert absences(read_bundle(tmp_path))["process 100 of rank 0"] == "it was given twice"


NAMES = (
    "nccl_trace_rank_{}",
    "_dump_{}",
    "comm_lib_trace_rank_{}",
    "dump_{}.pickle",
    "node7/trace-{}.pkl",
    "r{}-4711/flight.json",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made", [made_dumps.pickled, made_dumps.as_json])
def test_a_folder_of_dumps(tmp_path, name, made):
    for number in (0, 12):
        path = tmp_path / name.replace("{}", str(number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(made(dump([entry(0), entry(1)], ranks=list(range(13)))))
    case = read_paths([tmp_path])
    assert sorted(case.ranks) == [0, 12]
    assert case.job.world_size == 13
    assert case.job.backend == "nccl"
    assert case.calls["rank"].tolist() == [0, 0, 12, 12]
    assert "rank 1" in absences(case)


def test_bare_gloo_dumps_know_no_membership(tmp_path):
    nameless = {"": {"name": "", "desc": "", "ranks": "[]"}}
    for number in range(3):
        made = dump([gloo(0, True), gloo(1, True, process_group=("1", "x"))], pg_config=nameless)
        (tmp_path / f"dump_{number}").write_bytes(made_dumps.pickled(made))
    case = read_paths([tmp_path / f"dump_{n}" for n in range(3)])
    assert [(g.name, g.ranks) for g in case.groups] == [("0", (0, 1, 2)), ("1", ())]


def test_a_mixture_of_recognised_files(tmp_path):
    files = {
        "trace_rank_1": made_dumps.pickled(dump([entry(3)])),
        "pyspy_rank1.json": b'[{"thread_name": "MainThread", "frames": []}]',
        "stacks_0.txt": ASKED.encode(),
        "page_0.bin": made_page((77, 5, 12)),
        "attempt_0/2/error.json": b'{"message": {"message": "ValueError: bad", "extraInfo": {}}}',
        "attempt_0/2/stderr.log": b"late\n",
        "slurm.out": b"[rank1]: hello\n",
        "core": b"\x7fELF" + b"\0" * 400,
        "weights.json": b'{"a": 1}',
        "trace.pickle": made_dumps.pickled(dump([])),
        "trace_rank_3": b"\x80\x02X\xff\xff\xff\x7f",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    case = read_paths([tmp_path])
    assert sorted(case.ranks) == [0, 1, 2]
    assert (case.ranks[0].steps, case.ranks[0].main_stack.is_main) == (12, True)
    assert case.ranks[1].main_stack is not None
    assert case.ranks[2].error.message == "bad"
    assert {(line.text, line.rank) for line in case.log} == {("late", 2), ("hello", 1)}
    assert case.calls.wrapped_ranks == {1}
    gone = absences(case)
    assert gone[str(tmp_path / "core")] == "it is not a log, a dump or a report"
    assert "nor its content tells the rank" in gone[str(tmp_path / "trace.pickle")]
    assert "more memory" in gone["dump of rank 3"]


def test_nothing_to_judge(tmp_path):
    with pytest.raises(NothingToJudge, match="no evidence"):
        read_paths([tmp_path])
    with pytest.raises(UnreadableInput, match="missing: No such file or directory; check the path"):
        read_paths([tmp_path / "missing"])
    (tmp_path / "trace_rank_3").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(UnreadableInput, match=r"trace_rank_3: .* names os\.system"):
        read_paths([tmp_path / "trace_rank_3"])
    (tmp_path / "trace_rank_3").unlink()
    (tmp_path / "x.bin").write_bytes(b"\0" * 100)
    with pytest.raises(NothingToJudge, match=r"x\.bin: it is not a log, a dump or a report"):
        read_paths([tmp_path])


@pytest.mark.parametrize(
    ("code", "ended_by_us", "by"), [(130, False, "SIGINT"), (1, False, ""), (0, False, ""), (130, True, "")]
)
def test_the_exit_code_tells_of_a_ctrl_c_that_went_past_us(code, ended_by_us, by):
    """As for a job in a script's background: there `unhang run` ignores the signal, and the job's processes may not."""
    assert ended_by_signal({"exit_code": code, "ended_by_us": ended_by_us, "interrupted_by": None}) == by


_OF_A_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/job/dataset.py", line 107, in collate
    audio = np.stack(parts)
ValueError: need at least one array to stack
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (_OF_A_WORKER, ("need at least one array to stack", "/job/dataset.py", 3)),
        (
            "it said: Original Traceback (most recent call last):",
            ("it said: Original Traceback (most recent call last):", "/job/train.py", 1),
        ),
        (
            "Caught it. Original Traceback (most recent call last):\n  nothing",
            ("Caught it. Original Traceback (most recent call last):\n  nothing", "/job/train.py", 1),
        ),
    ],
    ids=["a worker's", "no such beginning", "nothing below"],
)
def test_an_exception_is_where_the_worker_raised_it(message: str, expected: tuple[str, str, int]) -> None:
    found = raised_error(
        {"type": "ValueError", "message": message, "frames": [["/job/train.py", 9, "main"]]}, "error.json"
    )
    assert (found.type, found.message, found.frames[0].file, len(found.frames)) == ("ValueError", *expected)
    assert found.frames[-1].file == "/job/train.py"
