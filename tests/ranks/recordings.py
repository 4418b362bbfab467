"""What `unhang run` left of each job with a fault and of each healthy one: judged again in tens of milliseconds, without the job.

`python -m tests.ranks.recordings [NAME...]` records anew, all of them or some. That is needed when a program changed, or
what the recorder writes. Programs are recorded at a place that is the same for everybody, and read there from memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.stories.cases import BROKEN
from unhang.diagnosis import Judged, judge_paths
from unhang.show import render

from .faults import CRASHES, HANGS, HEALTHY, STORIES, STRAGGLERS, Case
from .harness import Result, check_fault, check_healthy, run_job

REPOSITORY = Path(__file__).parents[2]
PLACE = Path("/tmp/unhang-recorded")
ARCHIVE = Path(__file__).with_name("recordings.tar.xz")
CASES = {case.name: case for case in (*HANGS, *STRAGGLERS, *CRASHES, *STORIES, *HEALTHY, *BROKEN)}
_INDEX = "index.json"
_ATTEMPTS = 4


def judged(folder: Path, case: Case) -> Result:
    """What `unhang diagnose` says of the recording of a case. `folder`: where the archive was unpacked."""
    entry = json.loads((folder / _INDEX).read_text())[case.name]
    assert entry["program"] == fingerprint(case), (
        f"{case.name} has changed: python -m tests.ranks.recordings {case.name}"
    )
    bundle = folder / case.name
    return Result(json.loads(render(verdict(bundle), "json")), bundle, entry["exit_code"], "", "", 0.0)


@cache
def verdict(bundle: Path) -> Judged:
    """What is found in it: once for all tests of this process."""
    return judge_paths([bundle])


def unpacked(folder: Path) -> Path:
    """All recordings, once for all tests of this process. `folder`: pytest's for its temporary files."""
    place = folder / "recorded"
    if not place.exists():
        unpack(place)
    return place


def unpack(folder: Path) -> None:
    """Unpacks all recordings, and lets the sources be read as if they lay where they were recorded."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for source in _sources():
        text = source.read_text()
        name = str(PLACE / source.relative_to(REPOSITORY))
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def fingerprint(case: Case) -> str:
    """Changes with the program and all that it is told."""
    files = {case.path, *(case.path.parent / name for name in case.files), *_imported(case.path)}
    facts = [case.args, case.ranks, case.outcome, sorted(case.environment.items()), case.port_taken, *case.launching]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files)) + repr(facts).encode()).hexdigest()[:16]


def _imported(program: Path) -> Iterator[Path]:
    for name in re.findall(r"^(?:from|import) (\w+)", program.read_text(), re.MULTILINE):
        if (path := program.with_name(f"{name}.py")).exists():
            yield path


def _sources() -> Iterator[Path]:
    for folder in ("tests/ranks", "examples"):
        yield from (REPOSITORY / folder).rglob("*.py")


# Recording


def main(names: list[str]) -> None:
    """Records here if this is the place; otherwise copies all that is needed there, and records there."""
    if REPOSITORY != PLACE:
        shutil.rmtree(PLACE, ignore_errors=True)
        for name in ("tests", "examples"):
            shutil.copytree(REPOSITORY / name, PLACE / name)
        command = [sys.executable, "-m", "tests.ranks.recordings", *names]
        subprocess.run(command, cwd=PLACE, check=True, env={**os.environ, "PYTHONPATH": str(PLACE)})
        shutil.copyfile(PLACE / ARCHIVE.relative_to(REPOSITORY), ARCHIVE)
        shutil.rmtree(PLACE)
        return
    with tempfile.TemporaryDirectory(prefix="recorded-") as made:
        folder = Path(made)
        index = {}
        if names and ARCHIVE.exists():
            unpack(folder)
            index = json.loads((folder / _INDEX).read_text())
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for name, entry in threads.map(lambda name: (name, record(CASES[name], folder)), names or CASES):
                print(name, flush=True)
                index[name] = entry
        (folder / _INDEX).write_text(json.dumps(dict(sorted(index.items())), indent=1))
        _pack(folder)


def record(case: Case, folder: Path) -> dict[str, object]:
    """Runs the job until its report is right, and keeps what the report was made of."""
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as work:
            result = run_job(case, Path(work), limit_s=100)
            try:
                (check_healthy(result, case) if case.outcome == "clean" else check_fault(case, result))
            except AssertionError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            shutil.rmtree(folder / case.name, ignore_errors=True)
            shutil.copytree(result.report_dir / "bundle", folder / case.name)
            break
    return {"program": fingerprint(case), "exit_code": result.exit_code}


def _pack(folder: Path) -> None:
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*"), key=lambda path: (path.name, path)):  # like beside like: a third smaller
            if not path.is_file():
                continue
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main(sys.argv[1:])
