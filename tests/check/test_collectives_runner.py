"""The member's side, with a stand-in for the worker that says what a test wants."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from unhang.check import collectives
from unhang.check.children import Worker
from unhang.check.collectives import Rendezvous, run_collectives
from unhang.check.collectives.suite import CaseResult, Limits, State, make_plan
from unhang.errors import WrongUsage

MEMBER = Rendezvous(0, 2, "127.0.0.1:9", "test")
START = ["import json, os, sys, time", "def say(**line): print(json.dumps(line), flush=True)"]
JOINED = "say(event='start', case=0); say(event='end', case=0, state='ok', seconds=1.0); say(event='start', case=1)"


def _run(monkeypatch: pytest.MonkeyPatch, body: str, limits: Limits | None = None) -> tuple[CaseResult, ...]:
    monkeypatch.setattr(collectives, "_command", lambda *_: [sys.executable, "-Sc", "\n".join([*START, body])])
    return run_collectives(MEMBER, ["barrier"], limits=limits or Limits(case_s=30, start_s=30))


def test_results_come_in_the_order_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"print('noise'); {JOINED}; say(event='end', case=1, state='skipped', reason='no'); say(event='done')"
    results = _run(monkeypatch, body)
    plan = make_plan(2, ["barrier"])
    assert [result.name for result in results] == [case.name for case in plan] == [
        "init_process_group", "barrier", "monitored_barrier",
    ]  # fmt: skip
    assert [result.state for result in results] == [State.OK, State.SKIPPED, State.NOT_RUN]
    assert (results[0].seconds, results[1].reason) == (1.0, "no")


def test_a_worker_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    results = _run(monkeypatch, f"{JOINED}; print('out of memory', file=sys.stderr); os.kill(os.getpid(), 9)")
    assert [result.state for result in results] == [State.OK, State.DIED, State.NOT_RUN]
    assert results[1].reason == "the worker was ended by SIGKILL, last said: out of memory"
    assert results[1].entered
    assert results[2].reason == "the worker did not get past barrier"


def test_a_worker_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    results = _run(monkeypatch, "import a_module_that_is_nowhere")
    assert (results[0].state, results[0].entered) == (State.DIED, False)
    assert "exited with code 1, last said: ModuleNotFoundError" in results[0].reason


def test_a_case_that_does_not_end_is_hung_and_its_worker_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = f"""open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); {JOINED}
say(event='stuck', case=1, stuck={{'stack': ['a.py:1 in f', 'b.py:2 in g'], 'issued': 0}}); time.sleep(60)"""
    results = _run(monkeypatch, body, Limits(case_s=0.3, start_s=30, settle_s=0.1))
    assert results[1].state is State.HUNG
    assert results[1].reason == "did not end within 0.3 s, stands at b.py:2 in g"
    assert results[1].stuck is not None
    assert results[1].stuck.issued == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_stopped_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{JOINED}; os.kill(os.getpid(), {int(signal.SIGSTOP)})"
    results = _run(monkeypatch, body, Limits(case_s=0.3, start_s=30, settle_s=0.1))
    assert results[1].reason == "did not end within 0.3 s, its process is stopped"


def test_an_error_after_the_limit_is_a_hang_that_a_peer_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"{JOINED}; time.sleep(0.6); say(event='end', case=1, state='error', reason='closed'); say(event='done')"
    results = _run(monkeypatch, body, Limits(case_s=0.3, start_s=30, settle_s=20))
    assert [result.state for result in results] == [State.OK, State.HUNG, State.NOT_RUN]
    assert results[1].reason == "did not end within 0.3 s, then closed"


def test_who_is_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    results = _run(
        monkeypatch, "say(event='waiting', ranks=[1]); time.sleep(60)", Limits(start_s=1, settle_s=0.1)
    )  # fmt: skip
    assert (results[0].state, results[0].waiting_for, results[0].entered) == (State.HUNG, (1,), False)
    assert "waits for ranks [1]" in results[0].reason


def test_the_time_for_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    results = _run(monkeypatch, f"{JOINED}; time.sleep(60)", Limits(case_s=30, start_s=30, run_s=1))
    assert {result.state for result in results[1:]} == {State.NOT_RUN}
    assert results[1].reason == "the 1 s for all collectives were used up"


def test_lines_that_make_no_sense_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [["no", "object"], {"event": "end", "case": 7, "state": "ok"}, {"event": "stuck", "case": 1, "stuck": 5}]
    body = f"{JOINED}; [print(line, flush=True) for line in {[json.dumps(line) for line in odd]}]; say(event='done')"
    assert [result.state for result in _run(monkeypatch, body)] == [State.OK, State.NOT_RUN, State.NOT_RUN]


def _interrupted(seen: list[int]) -> None:
    with Worker([sys.executable, "-Sc", "import time; time.sleep(60)"], {}) as worker:
        seen.append(worker.pid)
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_worker() -> None:
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(seen)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_wrong_name_starts_no_worker() -> None:
    with pytest.raises(WrongUsage, match="there is no collective 'allreduce' to check; there are: all, all_gather, "):
        run_collectives(MEMBER, ["allreduce"])
