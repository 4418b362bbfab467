"""What leaves the watcher besides the screen: figures for Prometheus (`--metrics`), and one message on a hang (`--webhook`)."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.model.findings import fold_ranks
from unhang.watch import Headline, RunOptions
from unhang.watch.agent import Agent

WEBHOOK_S, LAST_WAIT_S, FIGURES_EVERY_S = 5.0, 1.0, 1.0
_HEAD = (
    ("unhang_ranks_seen", "Ranks that live and are heard"),
    ("unhang_ranks_waiting", "Ranks that make no progress in the hang that is told"),
    ("unhang_nodes_unheard", "Other nodes that are not heard any more"),
    ("unhang_last_progress_age_seconds", "How long ago any rank moved"),
    ("unhang_longest_quiet_seconds", "How long the rank that moved last of all has not moved"),
)


def figures(values: Mapping[str, float], hang: Mapping[str, str]) -> str:
    """The text that Prometheus reads. `hang`: labels of the hang that is told, empty where there is none."""
    lines = []
    for name, words in _HEAD:
        lines += [f"# HELP {name} {words}.", f"# TYPE {name} gauge", f"{name} {values.get(name, 0.0):g}"]
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in hang.items())
    lines += ["# HELP unhang_hang 1 while a hang is told.", "# TYPE unhang_hang gauge"]
    return "\n".join([*lines, f"unhang_hang{{{labels}}} 1" if hang else "unhang_hang 0", ""])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ")


class MetricsServer:
    """Answers GET /metrics with `text`, in threads of its own."""

    def __init__(self, port: int) -> None:
        """Raises: OSError: the port cannot be had."""
        self.text = figures({}, {})
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == "/metrics"
                body = (outer.text if is_known else "GET /metrics\n").encode()
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="unhang-metrics", daemon=True).start()

    def close(self) -> None:
        """Stops. Blocks: half a second."""
        self._server.shutdown()
        self._server.server_close()


def post(url: str, fields: Mapping[str, object]) -> str:
    """Sends JSON; returns why it was not taken, "" if it was. Blocks: up to WEBHOOK_S for each step of the exchange."""
    body = json.dumps(fields).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "unhang"})
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_S) as answer:
            answer.read(1)
        return ""
    except (OSError, ValueError) as error:
        return str(error)


class OutwardAgent(Agent):
    """A watcher whose figures and verdicts are also sent elsewhere."""

    def __init__(self, options: RunOptions, run_dir: Path, root_pid: int, out: int, orders: int) -> None:
        super().__init__(options, run_dir, root_pid, out, orders)
        self._metrics: MetricsServer | None = None
        self._headline = Headline("")
        self._figures_at = 0.0
        self._posting: list[threading.Thread] = []
        self._posted = 0
        if options.metrics_port:
            try:
                self._metrics = MetricsServer(options.metrics_port)
            except OSError as error:
                self._send({"event": "note", "text": f"no metrics at port {options.metrics_port}: {error.strerror}"})

    def run(self) -> None:
        """Turns until the job is over."""
        try:
            super().run()
        finally:
            until = time.monotonic() + LAST_WAIT_S
            for thread in self._posting:
                thread.join(max(0.0, until - time.monotonic()))

    def _turn(self, now: float) -> None:
        super()._turn(now)
        if self._metrics is not None and now - self._figures_at >= FIGURES_EVERY_S:
            self._figures_at = now
            verdict = self.verdict or {}
            said = self._headline
            hang = (
                {"kind": str(verdict["kind"]), "cause": said.cause, "ranks": fold_ranks(said.ranks)} if verdict else {}
            )
            self._metrics.text = figures(self._values(now), hang)

    def _values(self, now: float) -> dict[str, float]:
        quiet = [rank.quiet_s(now) for rank in self._live()]
        return {
            "unhang_ranks_seen": len(quiet),
            "unhang_ranks_waiting": len((self.verdict or {}).get("waiting_ranks", ())),
            "unhang_last_progress_age_seconds": round(min(quiet, default=0.0), 1),
            "unhang_longest_quiet_seconds": round(max(quiet, default=0.0), 1),
        }

    def _judge(self) -> None:
        """Judges what lies in the run directory, for one line on it."""
        if self.options.headline is not None:
            with suppress(Exception):
                self._headline = self.options.headline(self.run_dir)

    def _tell(self, verdict: Mapping[str, Any], will_end: bool) -> None:
        number = int(verdict["detected_ns"]) + bool(verdict["withdrawn"])
        if number == self._posted or not (self.options.webhook or self._metrics):
            return
        self._posted = number
        thread = threading.Thread(target=self._send_out, args=(dict(verdict),), name="unhang-webhook", daemon=True)
        thread.start()
        self._posting.append(thread)

    def _send_out(self, verdict: Mapping[str, Any]) -> None:
        if not self._headline.line and not verdict["withdrawn"]:
            self._judge()
        if self.options.webhook is None:
            return
        said = self._headline
        fields = {
            "event": "moves-again" if verdict["withdrawn"] else "hang",
            "kind": verdict["kind"],
            "cause": said.cause,
            "ranks": list(said.ranks),
            "waiting_ranks": len(verdict["waiting_ranks"]),
            "line": said.line,
        }
        if refusal := post(self.options.webhook, fields):
            self._send({"event": "note", "text": f"the webhook did not take the message: {refusal}"})
