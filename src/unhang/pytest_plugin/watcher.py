"""The watcher's process below pytest: its messages go to stdout, a line of JSON each; it ends when stdin is closed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from unhang.watch.options import RunOptions
from unhang.watch.watching import watch

if __name__ == "__main__":
    run_dir = Path(sys.argv[1])
    options = RunOptions(report_dir=run_dir, abort_after_s=float(sys.argv[3]), env=dict(os.environ))
    watch(options, run_dir, int(sys.argv[2]), 1, 0)
