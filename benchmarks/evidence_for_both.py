"""What `same_findings.py` asks two versions of the sources: all evidence that the repository holds or can make."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from one_version import Commands

FORMATS = ("json", "text", "html")
NAMES = ("job.log", "slurm-4711.out", "train.err", "stdout.txt", "log")
HELP = ("", "run", "diagnose", "check", "reproduce", "verify", "inject", "demo", "env", "explain", "skill")
STYLES = ("", "--timing --batched", "--wrapped --live")  # of the dumps with seeds 0, 1 and 2
EACH_PAGE = 10


class Case(NamedTuple):
    """What both versions are asked: the arguments of `unhang` by a label; the label's first word tells what comes back."""

    group: str
    name: str
    commands: Commands


def diagnosis(path: Path, formats: Iterable[str] = FORMATS) -> Commands:
    """The reports on evidence."""
    return {form: ["diagnose", str(path), "--no-cache", "--output-format", form] for form in formats}


def of_log(path: Path) -> Commands:
    """All that a log is asked for."""
    more = {f"json {command}": [command, str(path), "--output-format", "json"] for command in ("explain", "env")}
    return {**diagnosis(path), **more}


def incidents(root: Path, folder: Path, _: int) -> Iterator[Case]:
    """The logs of public incidents, under names that logs have."""
    for number, path in enumerate(sorted((root / "tests/incidents").glob("*.json"))):
        log = folder / path.stem / NAMES[number % len(NAMES)]
        log.parent.mkdir()
        log.write_text(json.loads(path.read_text())["log"], errors="surrogateescape")
        yield Case("incidents", path.stem, of_log(log))


def logs(root: Path, _: Path, __: int) -> Iterator[Case]:
    """The files of logs among the tests, and folders of logs by rank."""
    tests = root / "tests"
    for path in sorted(p for p in tests.rglob("*") if p.suffix in (".log", ".txt", ".out", ".err") and p.is_file()):
        yield Case("logs", str(path.relative_to(tests)), of_log(path))
    for path in sorted(tests.rglob("attempt_0")):
        yield Case("logs", str(path.parent.relative_to(tests)), diagnosis(path.parent))


def texts(root: Path, folder: Path, _: int) -> Iterator[Case]:
    """Every text in the tests that may be a log or a script: those of several lines, and single ones of some words."""
    seen: set[str] = set()
    for path in sorted((root / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes) or id(node) in inner:
                continue
            text = node.value if isinstance(node.value, str) else node.value.decode("utf-8", "surrogateescape")
            if text not in seen and ("\n" in text.strip() or (len(text) >= 30 and " " in text)):
                seen.add(text)
                file = folder / f"{len(seen)}{'.sh' if 'env' in path.stem else '.log'}"
                file.write_text(text, errors="surrogatepass" if "\\ud8" in ascii(text) else "surrogateescape")
                yield Case("texts", f"{path.relative_to(root)}:{node.lineno}", of_log(file))


def bundles(root: Path, folder: Path, _: int) -> Iterator[Case]:
    """Recorded bundles, each alone, with its trace, beside the one before, and all as a list of runs."""
    for path in sorted(p for p in (root / "tests").rglob("*") if ".tar" in p.name or p.suffix == ".tgz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder / path.name.partition(".")[0], filter="data")
    found = sorted(p.parent for base in (folder, root / "tests") for p in base.rglob("job.json"))
    for before, bundle in zip([*found[-1:], *found], found, strict=False):
        one = diagnosis(bundle)
        against = {f"{form} against": [*one[form], "--against", str(before)] for form in ("json", "text")}
        yield Case("bundles", bundle.name, {**one, **against, "trace": [*one["json"], "--trace", "TRACE"]})
    for parent in sorted({bundle.parent for bundle in found}):
        yield Case("bundles", f"all of {parent.name}", diagnosis(parent, ("json", "text")))


def dumps(_: Path, folder: Path, __: int) -> Iterator[Case]:
    """Simulated dumps of every fault, at 16 ranks with three seeds and at 64, with traces and beside healthy ones."""
    from dumpgen import FAULTS, HEALTHY, NoPlace, build
    from make_dumps import options, spec_of

    for ranks, seed in ((16, 0), (16, 1), (16, 2), (64, 0)):
        healthy = folder / f"{HEALTHY}-{ranks}-{seed}"
        for fault in (HEALTHY, *FAULTS):
            size = f"--ranks {ranks} --entries 60 --seed {seed} {STYLES[seed]}".split()
            path = folder / f"{fault}-{ranks}-{seed}"
            try:
                build(spec_of(options().parse_args([str(path), "--fault", fault, *size]))).write(path)
            except NoPlace:
                print(f"{path.name}: this fault has no place in such a job", file=sys.stderr)
                continue
            one = diagnosis(path)
            against = {f"{form} against": [*one[form], "--against", str(healthy)] for form in ("json", "text")}
            yield Case("dumps", path.name, {**one, **against, "trace": [*one["json"], "--trace", "TRACE"]})


def draws(_: Path, folder: Path, count: int) -> Iterator[Case]:
    """Jobs drawn at random, by their seeds; the page is compared for one in EACH_PAGE."""
    from dumpgen import random_job

    for seed in range(count):
        path = folder / str(seed)
        random_job(seed).write(path)
        yield Case("random jobs", f"seed {seed}", diagnosis(path, FORMATS if seed % EACH_PAGE == 0 else FORMATS[:2]))
        shutil.rmtree(path)


def of_words(known: Iterable[str]) -> Iterator[Case]:
    """The explanations, the reference of variables, and the help texts."""
    for word in known:
        asked = {form: ["explain", word, "--output-format", form] for form in FORMATS[:2]}
        yield Case("explain", word, asked)
    for form in FORMATS[:2]:
        yield Case("explain", f"tree, {form}", {form: ["explain", "--output-format", form]})
        yield Case("explain", f"variables, {form}", {form: ["env", "--list", "--output-format", form]})
    for name in HELP:
        yield Case("help", name or "unhang", {"text": [*name.split(), "--help"]})


def scripts(root: Path, _: Path, __: int) -> Iterator[Case]:
    """What `env` says of launch scripts and programs."""
    kinds = {".sh", ".sbatch", ".yaml", ".toml", ".py"}
    folders = ("examples", "tests/ranks", "benchmarks/hangbench")
    for path in sorted(p for f in folders for p in (root / f).rglob("*") if p.suffix in kinds):
        asked = {form: ["env", str(path), "--output-format", form] for form in FORMATS[:2]}
        yield Case("env", str(path.relative_to(root)), asked)


def examples(known: Iterable[str]) -> Iterator[Case]:
    """The examples of rules, each judged by all rules; and what they expect."""
    for key in known:
        yield Case("examples", key, {form: ["!example", key, form] for form in (*FORMATS, "expected")})


GROUPS: dict[str, Callable[[Path, Path, int], Iterator[Case]]] = {
    "incidents": incidents,
    "logs": logs,
    "texts": texts,
    "bundles": bundles,
    "dumps": dumps,
    "draws": draws,
    "env": scripts,
}
