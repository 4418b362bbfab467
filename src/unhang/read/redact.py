"""Keeps secrets out of what is stored: only known variables, and no values of flags that carry a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unhang.read.environment.settings import Assignment, Settings

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
