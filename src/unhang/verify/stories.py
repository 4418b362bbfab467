"""The stories that `unhang demo` plays: small trainings that go wrong as real ones did, the truth about each, and the play."""

from __future__ import annotations

import difflib
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import unhang
from unhang import verify
from unhang.errors import UnreadableInput, WrongUsage, did_you_mean
from unhang.model import Outcome
from unhang.model.findings import name_ranks
from unhang.verify import HowToRun, Run
from unhang.verify.before_after import compare_sides, verified_text, where
from unhang.verify.expectations import default_expectations

SCHEMA = "unhang.stories/1"
DEFAULT = "demo"
_PACKAGE = Path(unhang.__file__).parent
_AROUND = 3
_VERDICT_LINES = 45
Show = Callable[[str], None]
# The one story whose folder holds no repaired program: what is to be changed in it.
_DEMO_PATCH = (
    "evaluation.py",
    """    if dist.get_rank() == 0:
        print(f"epoch {epoch} done      {describe(metrics)}", flush=True)
""",
    """    line = describe(metrics)  # on every rank: it makes a collective call
    if dist.get_rank() == 0:
        print(f"epoch {epoch} done      {line}", flush=True)
""",
)


@dataclass(frozen=True)
class Fault:
    """A fault that a story's program can be told to have, and the truth about it. `any_culprit`: one of the culprits, by chance."""

    name: str
    outcome: str
    cause: str
    culprits: tuple[int, ...]
    any_culprit: bool = False


@dataclass(frozen=True)
class Story:
    """One story. `patch`: file, text and its replacement, where the broken program is repaired by an edit."""

    name: str
    title: str
    folder: Path
    broken: str
    fixed: str
    cause: str
    culprits: tuple[int, ...]
    believed: str
    fix: str
    file: str = "train.py"
    marker: str = ""
    patch: tuple[str, str, str] | None = None
    faults: tuple[Fault, ...] = ()

    def diff(self) -> str:
        """The change that mends it; where the program has a switch for it, the lines that are wrong."""
        if self.patch is not None:
            name, old, new = self.patch
            text = (self.folder / name).read_text(encoding="utf-8")
            return _diff(text, text.replace(old, new), name, name)
        programs = [_program(command) for command in (self.broken, self.fixed)]
        if programs[0] != programs[1]:
            texts = [(self.folder / name).read_text(encoding="utf-8") for name in programs]
            return _diff(*texts, *programs)
        return self._diff_of_page() or self._marked_lines()

    def _diff_of_page(self) -> str:
        try:
            page = (self.folder / "README.md").read_text(encoding="utf-8")
        except OSError:
            return ""
        _, found, rest = page.partition("```diff\n")
        return rest.partition("```")[0] if found else ""

    def _marked_lines(self) -> str:
        lines = (self.folder / self.file).read_text(encoding="utf-8").splitlines()
        at = next((n for n, line in enumerate(lines) if self.marker and self.marker in line), None)
        if at is None:
            return ""
        around = range(max(0, at - _AROUND), min(len(lines), at + _AROUND + 1))
        return "".join(f"{'>' if n == at else ' '} {n + 1:4}  {lines[n]}\n" for n in around)

    def copy(self, target: Path, is_fixed: bool) -> None:
        """Copies the programs to where they are run, repaired if an edit is what repairs them.

        Raises:
            UnreadableInput: they cannot be copied, or the edit does not fit.
        """
        try:
            shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            if is_fixed and self.patch is not None:
                name, old, new = self.patch
                text = (target / name).read_text(encoding="utf-8")
                if text.count(old) != 1:
                    raise UnreadableInput(f"{self.folder / name} has changed: its repair does not fit any more")
                (target / name).write_text(text.replace(old, new), encoding="utf-8")
        except OSError as error:
            raise UnreadableInput(f"the programs of {self.name} cannot be copied: {error}") from None


def _diff(old: str, new: str, old_name: str, new_name: str) -> str:
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), old_name, new_name, n=2))


def _program(command: str) -> str:
    return next((word for word in shlex.split(command) if word.endswith(".py")), "train.py")


def command_of(text: str) -> list[str]:
    """A command line as words, with the launcher and the interpreter that belong to this unhang."""
    words = shlex.split(text)
    launchers = {"torchrun": [sys.executable, "-m", "torch.distributed.run"], "python": [sys.executable]}
    return [*launchers.get(words[0], words[:1]), *words[1:]]


def _folder(inside: str, checkout: str) -> Path:
    """Where data of ours lies: inside the installed package, or in the checkout that the package is part of."""
    packaged = _PACKAGE / "stories" / inside
    return packaged if packaged.exists() else _PACKAGE.parents[1] / "examples" / checkout


def find_stories(folder: Path | None = None) -> tuple[dict[str, Story], Sequence[str]]:
    """All stories by name, and the options of `unhang run` that they want. `folder`: where stories.toml lies.

    Raises:
        UnreadableInput: the list of stories cannot be read.
    """
    folder = folder or _folder("", "stories")
    try:
        content = tomllib.loads((folder / "stories.toml").read_text(encoding="utf-8"))
        if content.get("schema") != SCHEMA:
            raise UnreadableInput(f"{folder / 'stories.toml'} is of another format than {SCHEMA}")
        stories = [_story(entry, folder) for entry in content["story"]]
        return {story.name: story for story in (_demo(), *stories)}, [str(word) for word in content.get("options", ())]
    except OSError as error:
        raise UnreadableInput(f"the stories cannot be read: {folder / 'stories.toml'}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"{folder / 'stories.toml'}: {type(error).__name__}: {error}") from None


def _story(entry: Mapping[str, Any], folder: Path) -> Story:
    return Story(
        name=str(entry["name"]),
        title=str(entry["title"]),
        folder=folder / str(entry["name"]),
        broken=str(entry["broken"]),
        fixed=str(entry["fixed"]),
        cause=str(entry["cause"]),
        culprits=tuple(int(rank) for rank in entry["culprits"]),
        file=str(entry.get("file", "train.py")),
        believed=str(entry.get("believed", "")),
        fix=str(entry.get("fix", "")),
        marker=str(entry.get("marker", "")),
        faults=tuple(map(_fault, entry.get("faults", ()))),
    )


def _fault(entry: Mapping[str, Any]) -> Fault:
    culprits = tuple(int(rank) for rank in entry["culprits"])
    name, outcome, cause = (str(entry[key]) for key in ("name", "outcome", "cause"))
    return Fault(name, outcome, cause, culprits, bool(entry.get("any_culprit")))


def _demo() -> Story:
    command = "torchrun --standalone --nproc-per-node 4 train.py"
    return Story(
        name=DEFAULT,
        title="An evaluation after which nothing moves: four ranks learn two spirals",
        folder=_folder("demo", "demo"),
        broken=command,
        fixed=command,
        cause="code-divergence",
        culprits=(0,),
        believed="the network between the ranks is too slow",
        fix="The mean of the metrics is a collective call: every rank makes it, rank 0 alone prints.",
        patch=_DEMO_PATCH,
    )


def choose(name: str, stories: Mapping[str, Story]) -> Story:
    """The story of that name.

    Raises:
        WrongUsage: there is none.
    """
    key = name.strip().lower().replace("-", "_")
    if key in stories:
        return stories[key]
    hint = did_you_mean(key, stories, 0.5) or f"; there are {', '.join(stories)}"
    raise WrongUsage(f"there is no story {name!r}{hint}")


def play(story: Story, folder: Path, how: HowToRun, show: Show = print) -> int:
    """Plays it, with both reports in `folder`; returns the exit code. That the verdict is wrong is said on stderr.

    Blocks: as long as two short trainings, each up to the limit of `how`.
    """
    show(_head(story.title))
    show(f"What the team believed: {story.believed}")
    show(_head(f"$ unhang run -- {story.broken}"))
    broken = _run(story, folder / "broken", how, is_fixed=False)
    show(_verdict(folder / "broken"))
    named = broken.findings[0] if broken.findings else None
    is_right = broken.cause == story.cause and named is not None and set(named.culprit_ranks) == set(story.culprits)
    if not is_right:
        got = f"{broken.cause}, {where(named)}" if named else "nothing"
        print(f"\nunhang names {got}; the truth is {story.cause}, {name_ranks(story.culprits)}", file=sys.stderr)
    show(_head("The fix"))
    show(f"{story.fix}\n\n{story.diff().rstrip()}")
    show(_head(f"$ unhang verify --before {_short(folder / 'broken')} --after -- {story.fixed}"))
    fixed = _run(story, folder / "fixed", how, is_fixed=True)
    verified = compare_sides([broken], [fixed], default_expectations())
    show(verified_text(verified))
    show(f"The reports: {_short(folder / 'broken' / 'report.html')}, {_short(folder / 'fixed' / 'report.html')}")
    return verified.exit_code or (0 if is_right else 1)


def _run(story: Story, folder: Path, how: HowToRun, is_fixed: bool) -> Run:
    """Runs one version in a copy of its folder, which stays beside the report that names its lines."""
    return _run_copy(story, story.fixed if is_fixed else story.broken, folder, how, is_fixed)


def _run_copy(story: Story, command: str, folder: Path, how: HowToRun, is_fixed: bool) -> Run:
    program = folder / "program"
    story.copy(program, is_fixed)
    return verify.make_run(command_of(command), folder, replace(how, cwd=program))


def _verdict(folder: Path) -> str:
    try:
        lines = (folder / "report.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "(there is no report)"
    left = len(lines) - _VERDICT_LINES
    more = [f"... {left} more lines in {_short(folder / 'report.txt')}"] if left > 0 else []
    return "\n".join([*lines[:_VERDICT_LINES], *more])


def _head(text: str) -> str:
    return f"\n{text}\n{'-' * min(len(text), 100)}"


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


# All faults of the stories' tables in one go: each is run, and its verdict laid beside the truth.


def play_faults(stories: Iterable[Story], folder: Path, how: HowToRun, show: Show) -> int:
    """Runs each fault of the stories, with its report in `folder`; a line for each. Returns the exit code: 1 if any verdict is wrong.

    Blocks: as long as the trainings, each up to the limit of `how`.
    """
    count = right = 0
    for story in stories:
        for fault in story.faults:
            found = _run_with_fault(story, fault, folder / story.name / fault.name, how)
            is_right = agrees(fault, found)
            count, right = count + 1, right + is_right
            told = _said(found.diagnosis.outcome, found.cause, _culprits(found))
            truth = "" if is_right else f"; the truth is {_said(Outcome(fault.outcome), fault.cause, fault.culprits)}"
            show(f"{'right' if is_right else 'WRONG'}  {story.name} {fault.name}: {told}{truth}")
    show(f"{right} of {count} verdicts are right; the reports are in {folder}")
    return 0 if right == count else 1


def _run_with_fault(story: Story, fault: Fault, folder: Path, how: HowToRun) -> Run:
    if fault.outcome == "clean":
        how = replace(how, abort_after_s=None)  # what goes on by itself is not ended
    return _run_copy(story, f"{story.fixed} --fault {fault.name}", folder, how, is_fixed=False)


def agrees(fault: Fault, run: Run) -> bool:
    """Whether the verdict of a run is the truth about the fault: outcome, cause and culprits."""
    named, truth = set(_culprits(run)), set(fault.culprits)
    is_them = bool(named) and named <= truth if fault.any_culprit else named == truth
    return run.diagnosis.outcome == fault.outcome and run.cause == fault.cause and is_them


def _culprits(run: Run) -> tuple[int, ...]:
    return run.findings[0].culprit_ranks if run.findings else ()


def _said(outcome: Outcome, cause: str, ranks: tuple[int, ...]) -> str:
    return ", ".join(part for part in (outcome.value, cause, name_ranks(ranks, 4) if ranks else "") if part)
