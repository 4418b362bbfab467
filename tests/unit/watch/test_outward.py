"""What leaves the watcher: figures that Prometheus can read, and a message on a hang that nothing waits for."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.watch.conftest import until

from unhang.watch import Headline, RunOptions, outward
from unhang.watch.outward import MetricsServer, OutwardAgent, figures, post

VERDICT = {"kind": "proven", "detected_ns": 5, "waiting_ranks": [0, 1, 2], "withdrawn": False}


def test_figures_are_what_prometheus_reads() -> None:
    text = figures({"unhang_ranks_seen": 8, "unhang_last_progress_age_seconds": 1.5}, {})
    assert "\nunhang_ranks_seen 8\n" in text
    assert "\nunhang_last_progress_age_seconds 1.5\n" in text
    assert text.endswith("\nunhang_hang 0\n")
    hung = figures({}, {"kind": "proven", "cause": 'a "b"\\\n'})
    assert hung.endswith('\nunhang_hang{kind="proven",cause="a \\"b\\"\\\\ "} 1\n')


def test_a_node_is_six_series_however_many_ranks_there_are() -> None:
    for hang in ({}, {"kind": "proven", "cause": "code-divergence", "ranks": "0-99999"}):
        text = figures({"unhang_ranks_seen": 100_000, "unhang_ranks_waiting": 100_000}, hang)
        assert len([line for line in text.splitlines() if line and not line.startswith("#")]) == 6


def test_the_figures_can_be_fetched_and_nothing_else() -> None:
    server = MetricsServer(0)
    try:
        server.text = "unhang_hang 0\n"
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/metrics", timeout=5) as answer:
            assert answer.read() == b"unhang_hang 0\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{base}/etc/passwd", timeout=5)
        refused.value.close()
    finally:
        server.close()


class _Sink(http.server.BaseHTTPRequestHandler):
    got: list[Any] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Sink)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    _Sink.got.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def _agent(tmp_path: Path, **options: Any) -> tuple[OutwardAgent, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []
    agent = OutwardAgent(RunOptions(tmp_path, **options), tmp_path, 1, -1, -1)
    agent._send = said.append  # type: ignore[method-assign]
    return agent, said


def test_a_hang_is_posted_once_and_taken_back(sink: str, tmp_path: Path) -> None:
    agent, said = _agent(tmp_path, webhook=sink, headline=lambda _: Headline("rank 1 is late", "late", (1,)))
    for verdict in (VERDICT, VERDICT, {**VERDICT, "withdrawn": True}):
        agent._tell(verdict, will_end=True)
        for thread in agent._posting:
            thread.join()
    hang = {
        "event": "hang",
        "kind": "proven",
        "cause": "late",
        "ranks": [1],
        "waiting_ranks": 3,
        "line": "rank 1 is late",
    }
    assert _Sink.got == [hang, {**hang, "event": "moves-again"}]
    assert said == []


def test_a_webhook_that_does_not_answer_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outward, "WEBHOOK_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        agent, said = _agent(tmp_path, webhook=url)
        started = time.monotonic()
        agent._tell(VERDICT, will_end=True)
        assert time.monotonic() - started < 0.2
        assert "the webhook did not take the message" in until(lambda: said)[0]["text"]
    assert post("http://127.0.0.1:1/x", {}) != ""
