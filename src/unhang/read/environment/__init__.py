"""Environment variables: what the libraries know (tables), where a job sets them (one `Settings` for each file, process or log), and which may be stored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

MAX_VALUE = 4096


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that is set in one place.

    `value` is None where it is computed when the job runs; `expression` is then what computes it. `is_default`: it counts
    only where the variable is not set already. `reported_by`: who tells it (the process, a script's line, a host in a log).
    """

    name: str
    value: str | None
    line: int | None = None
    expression: str = ""
    is_default: bool = False
    reported_by: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher's command line: its options, without the script's."""

    program: str
    options: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class Settings:
    """What one source sets. `form`: process, shell, python, yaml, config, log or document. `mentions`: names whose value it uses itself."""

    path: str
    form: str
    assignments: tuple[Assignment, ...] = ()
    mentions: frozenset[str] = frozenset()
    launches: tuple[Launch, ...] = ()
    interfaces: frozenset[str] | None = field(default=None)

    @property
    def is_live(self) -> bool:
        """Whether this is the whole environment of a process: what is not in it is not set."""
        return self.form == "process"

    @property
    def is_one_node(self) -> bool:
        """Whether every launcher that it starts is told to use one node."""
        one = ("1", "1:1")
        return bool(self.launches) and all(
            "standalone" in x.options or x.options.get("nnodes") in one or x.options.get("num-machines") in one
            for x in self.launches
        )

    def last(self, name: str) -> Assignment | None:
        """The assignment that counts; one that only fills a gap does not override an earlier one."""
        found: Assignment | None = None
        for assignment in self.assignments:
            if assignment.name == name and not (found is not None and assignment.is_default):
                found = assignment
        return found


def unquoted(text: str) -> str:
    """A value without the quotes around it, and without one that was cut off."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.count('"') == 1:
        text = text.strip('"')
    return text.strip("'") if text.count("'") == 1 else text


# What the libraries know: names, types, ranges and meanings of environment variables, with the versions they were read from.

STRICT = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "TORCH_DIST_", "GLOO_", "PET_")
LOOSE = ("TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "OMP_")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that a library reads.

    `type`: flag (0 or 1), bool (yes and no as torch spells them), int, choice, list, level (a distance in the topology),
    interfaces, devices, text. `now`: the name that takes its place; `until`: the last version that reads it.
    """

    name: str
    library: str
    type: str = "text"
    low: int | None = None
    high: int | None = None
    values: tuple[str, ...] = ()
    default: str = ""
    since: str = ""
    until: str = ""
    now: str = ""
    meaning: str = ""

    @property
    def accepts(self) -> str:
        """The values that it takes, in words."""
        if self.type in ("flag", "bool"):
            return "0 or 1"
        if self.values:
            return ", ".join(self.values)
        if self.low is not None or self.high is not None:
            low = self.low if self.low is not None else "..."
            return f"{low} to {self.high}" if self.high is not None else f"{low} or more"
        return {"int": "a whole number", "interfaces": "interfaces", "devices": "devices"}.get(self.type, "text")


@dataclass(frozen=True, slots=True)
class Belief:
    """A name that no library reads. `instead`: what does what was meant; `name`: the real variable, where there is one."""

    meant: str
    instead: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Where a list of names comes from."""

    library: str
    version: str
    read_from: str
    names: tuple[str, ...]


def _load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


@cache
def tables() -> tuple[Table, ...]:
    """The lists of names with their versions."""
    found = (_load("torch.json"), _load("nccl.json"))
    return tuple(Table(t["library"], t["version"], t["read_from"], tuple(t["names"])) for t in found)


@cache
def variables() -> dict[str, Variable]:
    """All real variables by name, those with a meaning and those of which only the name is known."""
    found: dict[str, Variable] = {}
    for table in tables():
        for name in table.names:
            library = "gloo" if name.startswith("GLOO_") else table.library
            found[name] = Variable(name, library)
    for name, entry in _load("meanings.json").items():
        found[name] = Variable(name, **{**entry, "values": tuple(entry.get("values", ()))})
    return dict(sorted(found.items()))


@cache
def beliefs() -> dict[str, Belief]:
    """Names that people set and no library reads."""
    return {name: Belief(**entry) for name, entry in _load("beliefs.json").items()}


@cache
def _foreign() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), what) for pattern, what in _load("foreign.json"))


def whose_variable(name: str) -> str:
    """Whose variable a name is that these libraries do not read, such as a path of a build; "" where that is not known."""
    return next((what for pattern, what in _foreign() if pattern.fullmatch(name)), "")


def in_scope(name: str) -> bool:
    """Whether a name is one to have an opinion on."""
    return name in variables() or name in beliefs() or name.startswith((*STRICT, *LOOSE))


REDACTED = "<redacted>"
_SECRET = re.compile(r"token|secret|passw|key|credential|auth", re.IGNORECASE)
_SECRET_FLAG = re.compile(
    r"(token|secrets?|passw(or)?d?|pwd|credentials?|(api|access|auth|private|secret)[-_.]?keys?)$", re.I
)
_SECRET_IN_URL = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*(?=@)")
_SECRET_VALUE = re.compile(r"\b(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abps]-|AKIA)[A-Za-z0-9_-]{12,}")
# NAME_TOKEN=value, --api-key value, "password": "value", Authorization: Bearer value.
_SECRET_ASSIGNED = re.compile(
    r"(\b[\w-]*(?:token|secret|passw(?:or)?d|pwd|credentials?|(?:api|access|auth|private|secret)[-_.]?key)"
    r"(?:\\?[\"'])?\s*[=:]\s*(?:\\?[\"'])?|--[\w-]*(?:token|secret|password|key)[ \t]+|\bBearer[ \t]+)"
    r"(?!<redacted>)(?:[^\s\"'\\,;<>&]{4,})",
    re.I,
)
_STORED = re.compile(
    r"(NCCL|TORCH|TORCHELASTIC|PYTORCH|GLOO|OMP|MKL|UCX|FI|RDMAV|UCC|ROCR|HIP)_\w+|CUDA_\w+|(LOCAL_|GROUP_|ROLE_|NODE_)?RANK"
    r"|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|MASTER_(ADDR|PORT)|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NNODES|JOB_ID|STEP_ID|STEP_NUM_TASKS)"
    r"|OMPI_COMM_WORLD_\w+|PMI_(RANK|SIZE)|TOKENIZERS_PARALLELISM|PYTHON(UNBUFFERED|FAULTHANDLER)|LD_PRELOAD"
)


def stored_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide how ranks find each other and communicate; none whose name looks like a secret."""
    names = (
        n for n in sorted(env) if _STORED.fullmatch(n) and (n == "TOKENIZERS_PARALLELISM" or not _SECRET.search(n))
    )
    return {name: _without_secrets(env[name]) for name in names}


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's name or value looks like a secret, so that the variable must not leave its process."""
    return bool(_SECRET.search(name)) or _without_secrets(value) != value


def redact_command(command: Sequence[str]) -> list[str]:
    """The command line without the values of flags like `--token`, `--api-key=...`, and without passwords in URLs."""
    kept: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_secret = bool(_SECRET_FLAG.search(name)) and (name.startswith("-") or bool(equals))
        if hide_next and not word.startswith("-"):
            kept.append(REDACTED)
        elif is_secret and equals:
            kept.append(f"{name}={REDACTED}")
        else:
            kept.append(_without_secrets(word))
        hide_next = is_secret and not equals
    return kept


def redact_text(text: str) -> str:
    """Text of any kind without passwords in URLs, known tokens, and values that are set for names of secrets."""
    return _SECRET_ASSIGNED.sub(rf"\g<1>{REDACTED}", _without_secrets(text))


def without_secrets(settings: Settings) -> Settings:
    """The same settings without values that look like secrets."""
    launches = tuple(
        replace(x, options={k: _redacted(f"--{k}", v) for k, v in x.options.items()}) for x in settings.launches
    )
    return replace(settings, assignments=tuple(map(_assigned, settings.assignments)), launches=launches)


def _assigned(assignment: Assignment) -> Assignment:
    name, value = assignment.name, assignment.value
    value = value if value is None else _redacted(name, value)
    return replace(assignment, value=value, expression=_redacted(name, assignment.expression))


def _redacted(name: str, value: str) -> str:
    return redact_command([f"{name}={value}"])[0].partition("=")[2]


def _without_secrets(text: str) -> str:
    return _SECRET_VALUE.sub(REDACTED, _SECRET_IN_URL.sub(REDACTED, text))
