"""How large report.html is and how soon a browser shows it, for jobs of 4 to 16,384 ranks.

A page holds at most 400 calls of each rank and about a million in all: with 60 entries per rank that of 16,384 ranks is full.
Times are medians over `--runs` fresh browsers' pages, from the start of the navigation to a local file: first paint as the browser itself notes
it (first contentful paint), and until the lanes are drawn.

Usage: python benchmarks/page_size.py [--jobs 4x400,256x400,1024x400,16384x60] [--dir DIR] [--runs 5] [--save]
Needs chromium, and playwright from the dev extra.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dumps_on_disk import HERE, made, tell
from playwright.sync_api import Browser, sync_playwright

UNHANG = Path(sys.executable).parent / "unhang"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GOALS = {"first_paint_s": 2.0, "bytes": 6_000_000}
LIMIT_S = 600
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DRAWN = "document.querySelector('#legend').childElementCount > 0 ? performance.now() : null"


def shown(browser: Browser, page_file: Path) -> tuple[float, float]:
    """Seconds to the first paint and until everything is drawn, in a page of its own."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.as_uri(), timeout=LIMIT_S * 1000)
    drawn = page.wait_for_function(_DRAWN, timeout=LIMIT_S * 1000, polling=20).json_value()
    painted = page.wait_for_function(_PAINTED, timeout=LIMIT_S * 1000).json_value()
    page.close()
    return painted / 1000, drawn / 1000


def measured(browser: Browser, parent: Path, job: str, runs: int) -> dict[str, Any]:
    """The page of one job."""
    ranks, entries = map(int, job.split("x"))
    folder, truth = made(parent, ranks, entries, "missing")
    page_file = parent / f"{folder.name}.html"
    command = [UNHANG, "diagnose", folder, "--no-cache", "--format", "html", "--output", page_file]
    subprocess.run(command, timeout=LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    times = [shown(browser, page_file) for _ in range(runs)]
    text = page_file.read_text(encoding="utf-8")
    found = {
        "ranks": ranks,
        "entries": entries,
        "bytes": page_file.stat().st_size,
        "first_paint_s": round(statistics.median(t[0] for t in times), 3),
        "first_paint_worst_s": round(max(t[0] for t in times), 3),
        "drawn_s": round(statistics.median(t[1] for t in times), 3),
        "names_culprit": all(f"rank {rank}" in text.partition("</h1>")[0] for rank in truth),
    }
    found["met"] = all(found[name] <= most for name, most in GOALS.items())
    tell(
        f"{ranks:6} ranks: {found['bytes'] / 1e6:.2f} MB, first paint {found['first_paint_s']:.2f} s, drawn {found['drawn_s']:.2f} s"
    )
    return found


def main() -> int:
    """0 where every page meets the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", default="4x400,256x400,1024x400,16384x60")
    parser.add_argument("--dir", type=Path, help="where dumps are made and kept (a temporary folder)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="into results/page_size.json")
    given = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as own, sync_playwright() as playwright:
        parent = given.dir or Path(own)
        parent.mkdir(parents=True, exist_ok=True)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        jobs = [measured(browser, parent, job, given.runs) for job in given.jobs.split(",")]
        result = {"goals": GOALS, "browser": browser.version, "load": os.getloadavg()[0], "jobs": jobs}
        browser.close()
    if given.save:
        (HERE / "results" / "page_size.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if all(job["met"] for job in jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
