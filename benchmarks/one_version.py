"""One version of the sources of unhang, asked through its own command in a process of its own: for `same_findings.py`.

Asked are the arguments of `unhang`, by a label. `!words`, `!examples` and `!example` are not commands of unhang, but asked like them.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

LIMIT_S = 120  # for one answer

Commands = dict[str, list[str]]
Answers = dict[str, dict[str, Any]]


def look_up(name: str, *likely: str) -> Any:
    """A name of unhang: in the modules where it likely is, else wherever the sources define it."""
    for module in likely:
        with suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    package = Path(importlib.import_module("unhang").__path__[0])
    defined = re.compile(rf"^(?:def|class) {name}\b|^{name}\b[^=\n]*=", re.M)
    for path in sorted(package.rglob("*.py")):
        if defined.search(path.read_text()):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
            return getattr(importlib.import_module(module), name)
    raise LookupError(f"these sources define no {name}")


@lru_cache
def examples() -> dict[str, Any]:
    """The examples of all rules, as `rule-id#number`: from tests/rules/cases where that is, else from the rules."""
    root = Path(importlib.import_module("unhang").__path__[0]).parents[1]
    if not (root / "tests/rules/cases").is_dir():
        by_rule = {rule.id: rule.EXAMPLES for rule in look_up("all_rules", "unhang.rules.registry")()}
    elif hasattr(cases := importlib.import_module("tests.rules.cases"), "load_examples"):
        by_rule = cases.load_examples()
    else:
        names = [m.name for m in pkgutil.walk_packages(cases.__path__, f"{cases.__name__}.")]
        modules = {name.rpartition(".")[2].replace("_", "-"): importlib.import_module(name) for name in names}
        by_rule = {rule: module.EXAMPLES for rule, module in modules.items() if hasattr(module, "EXAMPLES")}
    return {f"{rule}#{n}": example for rule, found in sorted(by_rule.items()) for n, example in enumerate(found)}


@lru_cache(maxsize=4)
def judged(key: str) -> tuple[Any, Any, Any]:
    """What all rules say of an example, its case, and who waits in it for whom."""
    situation = look_up("Situation", "unhang.analyze.situation")(examples()[key].case)
    return look_up("judge", "unhang.testing", "unhang.rules.registry")(situation), situation.case, situation.waits


def example_answer(key: str, form: str) -> str:
    """The report on an example in one of FORMATS, or what the example itself expects."""
    if form == "expected":
        fields = {name: getattr(examples()[key], name, None) for name in ("culprits", "line", "why")}
        return json.dumps({"kind": type(examples()[key]).__name__, **fields})
    if form == "json":
        return str(look_up("to_json", "unhang.show.verdict")(judged(key)[0]).decode())
    name, module = ("render_html", "web_page") if form == "html" else ("render_text", "text")
    return str(look_up(name, f"unhang.show.{module}")(*judged(key)))


def words() -> list[str]:
    """All that `unhang explain` knows by name, but for variables, which `env --list` shows."""
    rules = [rule.id for rule in look_up("all_rules", "unhang.rules.registry")()]
    return sorted({*rules, *look_up("CAUSES", "unhang.model"), *look_up("ADVICE", "unhang.skill.advice")})


def run(arguments: Sequence[str], scratch: Path) -> tuple[int, str]:
    """The exit code and output of one command. `TRACE` among its arguments is a file, whose hash is the output."""
    if arguments[0].startswith("!"):
        known = {"!words": words, "!examples": lambda: list(examples())}
        special = known.get(arguments[0])
        return 0, json.dumps(special()) if special else example_answer(*arguments[1:])
    trace = scratch / "trace.json.gz"
    written = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(written, "utf-8", write_through=True)):
        code = look_up("main", "unhang.cli.main")([str(trace) if a == "TRACE" else a for a in arguments])
        if "TRACE" in arguments:
            return code, hashlib.sha256(gzip.decompress(trace.read_bytes())).hexdigest()
        return code, written.getvalue().decode("utf-8", "backslashreplace")


def answered(arguments: Sequence[str], scratch: Path, plain: Callable[[str], str]) -> dict[str, Any]:
    """The answer to one command; what it raises is an answer too."""
    errors = io.StringIO()
    signal.alarm(LIMIT_S)
    try:
        with redirect_stderr(errors):
            code, out = run(arguments, scratch)
        return {"code": code, "out": plain(out), "err": plain(errors.getvalue())}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the next case is asked all the same
        place = traceback.extract_tb(error.__traceback__)[-1]
        return {"code": -1, "raised": plain(f"{type(error).__name__}: {error} in {place.name}")}
    finally:
        signal.alarm(0)


def serve(src: Path) -> None:
    """Answers the cases that come on stdin, a line of JSON each, on stdout."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, mode), descriptor)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"no answer in {LIMIT_S} s")))
    gc.disable()  # else the command freezes what is alive after each verdict, as it does where the process ends
    unhang = importlib.import_module("unhang")
    if not Path(unhang.__path__[0]).is_relative_to(src):
        raise SystemExit(f"{unhang.__path__[0]} is imported, not {src}")
    with tempfile.TemporaryDirectory() as scratch:

        def plain(text: str) -> str:
            text = text.replace(str(src), "SRC").replace(scratch, "SCRATCH")
            return re.sub(rf"(?i)(\bunhang\W{{1,4}}(?:version )?){re.escape(unhang.__version__)}\b", r"\1VERSION", text)

        for number, line in enumerate(requests):
            found = {label: answered(args, Path(scratch), plain) for label, args in json.loads(line).items()}
            print(json.dumps(found), file=answers, flush=True)
            if number % 50 == 49:
                gc.collect()


class Version:
    """One version of the sources, and its process."""

    def __init__(self, src: Path, workplace: Path) -> None:
        self.src, self._workplace = src.resolve(), workplace
        self._start()

    def _start(self) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        fixed = {"LANG": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1", "COLUMNS": "100", "PYTHONHASHSEED": "0"}
        path = f"{self.src}{os.pathsep}{self.src.parent}"  # the second: its tests hold examples of rules
        self._process = subprocess.Popen(
            [sys.executable, "-P", Path(__file__).resolve(), self.src],
            env={**kept, **fixed, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=self._workplace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, commands: Commands) -> None:
        """Sends a case."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            print(json.dumps(commands), file=self._process.stdin, flush=True)

    def answer(self) -> Answers:
        """The answer to the last case; where the process fell, that is told, and another one is started."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._start()
            return {"process": {"code": -1, "raised": f"ended with {code}"}}
        found: Answers = json.loads(line)
        return found

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
