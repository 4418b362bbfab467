"""Looks at the nodes of a job by a command that the user names (ssh, srun, kubectl exec), and joins what comes back."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unhang.errors import UnreadableInput, WrongUsage
from unhang.read.dumps.unpack import unpack
from unhang.read.files import read_object
from unhang.watch.folders import BUNDLE, write_job_file

NODE_LIMIT_S = 30.0
_HOST, _OURS = "{host}", "unhang: "
_MOST_AT_ONCE, _MOST_BYTES, _MOST_SAID = 32, 256 << 20, 200


@dataclass(frozen=True)
class Answer:
    """What a node sent. `jobs`: the folders of its jobs by their key. `why_not`: why there is nothing."""

    node: str
    jobs: Mapping[str, Path]
    why_not: str = ""


def command_for(via: str, node: str, remote: Sequence[str]) -> list[str]:
    """The command that runs `remote` on a node.

    Raises:
        WrongUsage: `via` cannot be read, or does not say where the node goes.
    """
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise WrongUsage(f"--via {via!r} cannot be read: {error}") from error
    if not any(_HOST in word for word in words):
        raise WrongUsage(f"--via {via!r} has no {{host}}: write it where the node's name goes, as in 'ssh {{host}}'")
    return [*(word.replace(_HOST, node) for word in words), *remote]


def parse_nodes(text: str) -> list[str]:
    """`a,b,c`.

    Raises:
        WrongUsage: there is none, or one that a command would take for an option.
    """
    nodes = [name for part in text.split(",") if (name := part.strip())]
    if not nodes or any(name.startswith("-") for name in nodes):
        raise WrongUsage(f"--nodes {text!r} names no nodes: write them as a,b,c")
    return list(dict.fromkeys(nodes))


def ask_nodes(via: str, nodes: Sequence[str], remote: Sequence[str], folder: Path, limit_s: float) -> list[Answer]:
    """Asks all nodes at the same time; what each sent is unpacked below `folder`.

    Blocks: `limit_s` for every 32 nodes. Raises: WrongUsage.
    """
    commands = [command_for(via, node, remote) for node in nodes]
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return list(pool.map(lambda pair: _ask(pair[0], pair[1], folder, limit_s), zip(nodes, commands, strict=True)))


def _ask(node: str, command: Sequence[str], folder: Path, limit_s: float) -> Answer:
    place = Path(tempfile.mkdtemp(dir=folder))
    packed = place / "answer.tar.gz"
    try:
        with packed.open("wb") as out:
            code, said = _run(command, out.fileno(), limit_s)
    except OSError as error:
        return Answer(node, {}, f"{command[0]}: {error.strerror or error}")
    if code is None:
        return Answer(node, {}, f"it did not answer within {limit_s:.0f} s")
    if not packed.stat().st_size:
        return Answer(node, {}, said or f"it sent nothing (exit code {code})")
    if packed.stat().st_size > _MOST_BYTES:
        return Answer(node, {}, f"it sent more than {_MOST_BYTES >> 20} MiB")
    try:
        unpack(packed, place / "jobs")
    except (UnreadableInput, OSError):
        return Answer(
            node, {}, said or "what it sent is no bundle of unhang: does the command print something of its own?"
        )
    packed.unlink()
    return Answer(node, _jobs_in(place / "jobs"))


def _run(command: Sequence[str], out: int, limit_s: float) -> tuple[int | None, str]:
    """(exit code, None where the limit ended it; what it said, in one line)."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what we started, and nothing else
            return None, ""
    lines = said.decode(errors="replace").strip().splitlines()
    own = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
    return process.returncode, next(iter([*own, *lines[-1:]]), "")[:_MOST_SAID]


def _jobs_in(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.glob("**/job.json")):
        with suppress(UnreadableInput):
            key = read_object(path).get("job_key")
            found[key if isinstance(key, str) else str(path)] = path.parent
    return found


def join(key: str, answers: Sequence[Answer], report_dir: Path) -> None:
    """Puts the folders of one job into a report folder, as one `unhang run` on each node would leave them.

    A node that did not answer is noted: of its ranks nothing is known, and nobody says that they are dead.
    """
    silent = [a for a in answers if a.why_not]
    here = [a for a in answers if key in a.jobs]
    for i, answer in enumerate(here):
        target = report_dir / BUNDLE if i == 0 else report_dir / _as_name(answer.node) / BUNDLE
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        shutil.move(answer.jobs[key], target)
    first = report_dir / BUNDLE
    job = json.loads((first / "job.json").read_bytes())
    noted = [{"what": f"node {a.node}", "reason": f"{a.why_not}; of its ranks nothing is known"} for a in silent]
    write_job_file(first, {**job, "absent": [*job.get("absent", []), *noted]})


def _as_name(node: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in node).lstrip(".") or "node"
