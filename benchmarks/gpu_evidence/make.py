"""Makes real NCCL jobs of a few ranks on one device, each with a known fault, keeps what they leave, and has it judged.

One command where a machine with an NVIDIA device can be had: `python benchmarks/gpu_evidence/make.py`. Each fault leaves a folder in OUT:
`evidence` (dumps, logs, NCCL's logs, stacks, RAS), `truth.json`, `outcome.json`, `versions.json`, `report.json`; `index.json` lists them.
`--backend gloo --device cpu` runs the same faults without a device, but for those that need one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu_evidence.faults import BY_NAME, FAULTS, Fault
from benchmarks.gpu_evidence.judge import ABSTAINS, DID_NOT_HAPPEN, RIGHT, WRONG, judged
from benchmarks.gpu_evidence.ranks import How, run

RESULTS = Path(__file__).parents[1] / "results" / "gpu_evidence.json"
JUDGING_S = 40.0  # kept of the whole limit for the verdicts
LEAST_S = 20.0  # a job that has less than this is not begun
RANK_BYTES = 3 << 30  # context, NCCL's buffers, tensors: more than was ever seen


def no_device() -> str:
    """Why NCCL cannot run here; empty where it can. Begins no context in this process."""
    if not Path("/dev/nvidiactl").exists():
        return "no device of NVIDIA (/dev/nvidiactl)"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no device"
    return "" if torch.distributed.is_nccl_available() else "this torch has no NCCL"


def jobs_at_once(wanted: int, how: How) -> int:
    """As many as were wanted, if the device has the memory."""
    if how.device != "cuda":
        return wanted
    import torch

    free, _ = torch.cuda.mem_get_info(0)
    return max(1, min(wanted, free // (how.ranks * RANK_BYTES)))


def make(faults: Sequence[Fault], out: Path, how: How, at_once: int, limit_s: float) -> dict[str, dict[str, object]]:
    """Runs the jobs and judges them. Blocks: up to `limit_s`, but for seconds.

    Returns:
        What became of each job, by its name. Also written to `out/index.json`.
    """
    out.mkdir(parents=True)
    last = time.monotonic() + limit_s - JUDGING_S * (limit_s > 2 * JUDGING_S)

    def one(fault: Fault) -> dict[str, object]:
        if fault.needs_cuda and how.device != "cuda":
            return {"skipped": "needs a device"}
        left_s = last - time.monotonic()
        if left_s < min(LEAST_S, how.limit_s):
            return {"skipped": "no time left"}
        bounded = How(how.backend, how.device, how.ranks, how.timeout_s, min(how.limit_s, left_s), how.settle_s)
        found = run(fault, out / fault.name, bounded)
        print(f"  {fault.name}: {found['seconds']} s, exit codes {found['exit_codes']}", flush=True)
        return found

    with ThreadPoolExecutor(at_once) as pool:
        ran = dict(zip([f.name for f in faults], pool.map(one, faults), strict=True))
    return judge(out, ran)


def judge(out: Path, ran: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Asks about each job of a set, whenever it was made; writes `out/index.json`."""
    index = {name: found if "skipped" in found else {**found, **judged(out / name)} for name, found in ran.items()}
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return index


def outcomes_in(out: Path) -> dict[str, dict[str, object]]:
    """What became of the jobs of a set."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("*/outcome.json"))}


def table(index: dict[str, dict[str, object]]) -> str:
    """A line for each job, and the sums."""
    lines = []
    for name, found in index.items():
        said = found.get("said") or {}
        assert isinstance(said, dict)
        words = f"{said['cause']} {said['culprit_ranks']} [{said['rule']}]" if said else str(found.get("problem", ""))
        lines.append(f"{name:24} {found.get('result', 'skipped'):15} {found.get('skipped', words)}")
    counts = Counter(str(found.get("result", "skipped")) for found in index.values())
    lines.append(", ".join(f"{counts[k]} {k}" for k in (RIGHT, ABSTAINS, WRONG, DID_NOT_HAPPEN, "skipped")))
    return "\n".join(lines)


def versions_in(out: Path) -> dict[str, object]:
    """What the jobs ran on."""
    for path in sorted(out.glob("*/versions.json")):
        found: dict[str, object] = json.loads(path.read_text())
        return found
    return {}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; what is left open depends on the backend."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", nargs="?", type=Path, help="a new folder (default: gpu-evidence, or $OUT/gpu-evidence)")
    options.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--only", nargs="+", choices=sorted(BY_NAME), metavar="FAULT", help="these faults only")
    options.add_argument("--ranks", type=int, choices=(2, 3, 4), default=3)
    options.add_argument("--timeout", type=float, help="seconds, of the process groups (default: 20; gloo: 6)")
    options.add_argument("--job-limit", type=float, default=70, help="seconds for one job")
    options.add_argument("--limit", type=float, default=540, help="seconds for everything")
    options.add_argument("--at-once", type=int, default=2, help="jobs at the same time, if memory allows")
    options.add_argument("--judge", action="store_true", help="make nothing: judge a set that is there")
    options.add_argument("--results", type=Path, default=RESULTS, help="where the verdicts are kept")
    given = options.parse_args(arguments)
    if given.backend == "nccl" and given.device != "cuda":
        options.error("NCCL needs --device cuda")
    given.timeout = given.timeout or (20 if given.backend == "nccl" else 6)
    given.out = given.out or Path(os.environ.get("OUT", "."), "gpu-evidence")
    if given.judge:
        return given
    if given.out.exists():
        options.error(f"{given.out} is there already")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the set, and prints the verdicts. Returns 1 where one is wrong, 3 where there is no device."""
    given = parsed(arguments)
    if not given.judge and given.device == "cuda" and (reason := no_device()):
        print(f"{reason}; '--backend gloo --device cpu' runs the faults that need none", file=sys.stderr)
        return 3
    settle_s = min(5.0, given.timeout / 3)
    how = How(given.backend, given.device, given.ranks, given.timeout, given.job_limit, settle_s)
    faults = [BY_NAME[name] for name in given.only] if given.only else list(FAULTS)
    made = partial(make, faults, given.out, how, jobs_at_once(given.at_once, how), given.limit)
    index = judge(given.out, outcomes_in(given.out)) if given.judge else made()
    print(table(index))
    kept = {"backend": given.backend, "ranks": given.ranks, "versions": versions_in(given.out), "jobs": index}
    given.results.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(found.get("result") == WRONG for found in index.values()))


if __name__ == "__main__":
    raise SystemExit(main())
