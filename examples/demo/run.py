"""What `make demo` runs: a real job of four ranks that hangs, under `unhang run`, and what it says about it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = Path(sys.executable).parent
HUNG = 124


def main() -> int:
    """Runs the demonstration; 0 if the hang was found."""
    report_dir = Path("unhang-reports") / time.strftime("demo-%Y%m%d-%H%M%S")
    command = [SCRIPTS / "torchrun", "--standalone", "--nproc-per-node", "4", HERE / "train.py"]
    print(f"$ unhang run -- torchrun --standalone --nproc-per-node 4 {HERE.name}/train.py\n", flush=True)
    code = subprocess.run([SCRIPTS / "unhang", "run", "--report-dir", report_dir, "--", *command]).returncode
    if code != HUNG:
        print(f"the job should have hung and been ended (exit code {HUNG}); its exit code is {code}", file=sys.stderr)
        return 1
    print(f"\nThe job hung, was named and ended. The report: {(report_dir / 'report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
