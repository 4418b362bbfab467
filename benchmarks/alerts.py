"""A real Prometheus reads `unhang run --metrics`, and a listener hears `--webhook`: what each is told of a hang, and how soon.

    python benchmarks/alerts.py --prometheus /usr/bin/prometheus      # Debian: apt-get install prometheus

A job of four ranks in which rank 0 makes another call; Prometheus scrapes once a second and has one alert on `unhang_hang == 1`. All on loopback.
"""

from __future__ import annotations

import argparse
import http.server
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "tests" / "ranks" / "programs" / "conditional_collective.py"
RESULTS = HERE / "results" / "alerts.json"
LIMIT_S = 240.0  # of a busy machine most goes into the imports
_CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
  - job_name: training
    static_configs: [{targets: ["127.0.0.1:PORT"]}]
"""
_RULES = """
groups:
  - name: unhang
    rules:
      - alert: TrainingHangs
        expr: unhang_hang == 1
        annotations: {summary: "{{ $labels.kind }} hang, ranks {{ $labels.ranks }}: {{ $labels.cause }}"}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Listener(http.server.BaseHTTPRequestHandler):
    """Keeps what a webhook says, and when."""

    said: list[tuple[float, dict[str, Any]]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        """One message."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.said.append((time.time(), json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def alerts(port: int) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=2) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
            return found
    except OSError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default=shutil.which("prometheus"), help="the program")
    given = parser.parse_args()
    if given.prometheus is None:
        parser.error("there is no prometheus here: give its path")
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    metrics, web = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(_CONFIG.replace("PORT", str(metrics)))
        (folder / "rules.yml").write_text(_RULES)
        prometheus = subprocess.Popen(
            [given.prometheus, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{web}", f"--storage.tsdb.path={folder}/data"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        unhang = [sys.executable, "-m", "unhang", "run", "--on-hang", "report", "--metrics", str(metrics)]
        unhang += ["--webhook", f"http://127.0.0.1:{listener.server_port}/", "--report-dir", str(folder / "report")]
        job = subprocess.Popen(
            [*unhang, "--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(PROGRAM)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until, firing, fired_at = time.monotonic() + LIMIT_S, [], 0.0
        try:
            while time.monotonic() < until and not (firing and Listener.said):
                time.sleep(0.1)
                firing = firing or [a for a in alerts(web) if a["state"] == "firing" and a["labels"].get("ranks")]
                fired_at = fired_at or (time.time() if firing else 0.0)
        finally:
            job.terminate()
            prometheus.terminate()
            job.wait(30)
            prometheus.wait(30)
            listener.shutdown()
        verdict = json.loads((folder / "report" / "bundle" / "verdict.json").read_text())
    onset_s = verdict["onset_ns"] / 1e9
    version = subprocess.run([given.prometheus, "--version"], capture_output=True, text=True).stdout.splitlines()[:1]
    heard_at, heard = Listener.said[0] if Listener.said else (0.0, {})
    result = {
        "prometheus": version,
        "alert": [{**a["labels"], "summary": a["annotations"]["summary"]} for a in firing],
        "alert_after_onset_s": round(fired_at - onset_s, 1) if firing else None,
        "webhook": heard,
        "webhook_after_onset_s": round(heard_at - onset_s, 1) if heard else None,
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if firing and heard else 1


if __name__ == "__main__":
    raise SystemExit(main())
