"""Which share of what emitters can say the catalogue knows: per emitter and version, from what is installed, or from folders given.

The texts are those that the libraries hold: of libtorch those beside the names of the sources of c10d, of libnccl those with a word of
failure, of Python packages the texts of warnings, errors and exceptions. A text is known if a row of the catalogue is it or holds it;
every row has an emitter, a layer and a role. `cause`: how many texts establish a cause by themselves.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from unhang.read.logs.catalogue import Row, bulk_rows, example_of, weighed_rows, whole

_TEXT = re.compile(rb"[\x20-\x7e\t]{12,}")
_SOURCE = re.compile(r"distributed/c10d/([\w/]+)\.[ch]pp$")
_WORDS = re.compile(r"[A-Za-z]{3,}[ ,:]+[a-z]{2,}.*[ ,:]+\S")
_TROUBLE = re.compile(
    r"fail|error|invalid|cannot|can't|could not|unable|mismatch|unexpected|timed? ?out|not found|exceed|corrupt|abort|must|does not|doesn't"
    r"|unsupported|not supported|wrong|missing|lost|no .{3,20} found|stuck|hang|too (?:many|small|large)|already|unknown|incorrect|closed|requires?",
    re.IGNORECASE,
)
_NO_MESSAGE = re.compile(
    r"INTERNAL ASSERT|to be true, but got false|\(Tensor|::|^_Z|^St\d|^N\d|-> |please report a bug|__\w+ \(which"
)
_PRINTF = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?([diouxXeEfgcpsm])")
_MOST_CHARS = 600
_REGION = 60  # strings after the name of a source that may still belong to it
_LOGGING = ("warning", "warn", "error", "exception", "critical", "fatal", "rank_zero_warn", "warning_once", "warn_once")
_PACKAGES = {
    "torch.distributed": "torch/distributed",
    "torch.distributed.elastic": "torch/distributed/elastic",
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "megatron": "megatron",
    "ray.train": "ray/train",
    "vllm.distributed": "vllm/distributed",
    "sglang.distributed": "sglang/srt/distributed",
    **{name: name for name in ("axolotl", "composer", "datasets", "ignite", "litdata", "llamafactory", "mmengine")},
    **{name: name for name in ("streaming", "torchtitan", "trl", "verl")},
}


class Share(NamedTuple):
    """How many of an emitter's texts are known."""

    emitter: str
    version: str
    texts: int
    known: int
    cause: int

    def __str__(self) -> str:
        return f"{self.emitter:28} {self.version:20} {self.known:>5} of {self.texts:>5}  {self.known / max(1, self.texts):>6.1%}  {self.cause:>5}"


def texts_of_binary(path: Path) -> Iterator[str]:
    """The printable texts of a library, in their order."""
    for match in _TEXT.finditer(path.read_bytes()):
        if match.end() - match.start() <= _MOST_CHARS:  # what is longer is code for a device
            yield match[0].decode().strip()


def texts_of_libtorch(path: Path) -> Iterator[str]:
    """Those that stand near the names of sources of c10d and tell of trouble."""
    recent: list[str] = []
    left = 0
    for text in texts_of_binary(path):
        if _SOURCE.search(text):
            yield from recent
            recent, left = [], _REGION
        elif is_message(text):
            if left:
                yield text
            else:
                recent = [*recent, text][-_REGION // 2 :]
        left = max(0, left - 1)


def is_message(text: str) -> bool:
    """Whether a text is a sentence that tells of trouble."""
    return bool(_WORDS.search(text) and _TROUBLE.search(text)) and not _NO_MESSAGE.search(text)


def texts_of_python(folder: Path) -> Iterator[str]:
    """The first lines of the texts of warnings, errors and exceptions in the sources of a package."""
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            text = _text_of_call(node)
            if text and len(text) >= 12 and _WORDS.search(text):
                yield text


def _text_of_call(node: ast.AST) -> str:
    """The text of a `raise` or of a call of a logger, %s for what is put in."""
    call: ast.expr | None = node.exc if isinstance(node, ast.Raise) else node if isinstance(node, ast.Call) else None
    if not isinstance(call, ast.Call) or not call.args:
        return ""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not isinstance(node, ast.Raise) and name not in _LOGGING:
        return ""
    lines = [line.strip() for line in _literal(call.args[0]).splitlines()]
    return next((line for line in lines if len(line) >= 12), "")


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "%s" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_literal(node.left) or "%s") + (_literal(node.right) or "%s")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _literal(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^{}]*\}", "%s", _literal(node.func.value))
    return ""


@cache
def _all_templates() -> str:
    """Every template, so that a part of a longer message is found in it."""
    rows: Iterable[Row] = (*weighed_rows(), *bulk_rows())
    return _bare("\n".join(t for row in rows for t in row.templates))


def _bare(text: str) -> str:
    """Without what is put in, and without spaces."""
    return re.sub(r"%[sdx%]|\{[^{}\n]*\}|[^\S\n]+", "", text).lower()


def judged(emitter: str, version: str, texts: Iterable[str]) -> Share:
    """The share of the known among the distinct texts."""
    distinct = list(dict.fromkeys(texts))
    known = cause = 0
    for text in distinct:
        template = _PRINTF.sub(lambda m: "%d" if m[1] in "dioufgeEG" else "%x" if m[1] in "xXp" else "%s", text)
        rows = whole().rows_of(example_of(re.sub(r"\{[^{}]*\}", "%s", template)))
        part = _bare(template)
        known += bool(rows) or (len(part) >= 10 and part in _all_templates())
        cause += bool(rows and rows[0].cause)
    return Share(emitter, version, len(distinct), known, cause)


def version_in(root: Path, package: str) -> str:
    """The version that the metadata beside a package tells."""
    found = sorted(root.glob(f"{package.replace('-', '_')}-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").split("-", 1)[1] if found else "?"


def shares_of(root: Path) -> Iterator[Share]:
    """What is found in one folder of packages."""
    torch = version_in(root, "torch")
    for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
        if (library := root / "torch" / "lib" / name).exists():
            yield judged(f"c10d in {name}", torch, texts_of_libtorch(library))
    for library in sorted(root.glob("nvidia/nccl*/lib/libnccl.so*")):
        yield judged("libnccl", version_in(root, "nvidia_nccl_cu1?"), filter(is_message, texts_of_binary(library)))
    for name, folder in _PACKAGES.items():
        if (root / folder).is_dir():
            yield judged(name, version_in(root, folder.split("/")[0]), texts_of_python(root / folder))


def main() -> int:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "folders", nargs="*", type=Path, help="folders with packages, such as unpacked wheels; else sys.path"
    )
    given = options.parse_args()
    roots: Sequence[Path] = given.folders or [Path(p) for p in sys.path if p.endswith("site-packages")]
    told, bulk = weighed_rows(), bulk_rows()
    print(f"rows: {len(told)} weighed ({sum(map(len, (r.templates for r in told)))} messages), {len(bulk)} others")
    with_cause = [row for row in told if row.cause]
    print(f"with a cause: {len(with_cause)} rows, {sum(len(row.templates) for row in with_cause)} messages\n")
    print(f"{'emitter':28} {'version':20} known            share   cause")
    for root in roots:
        for share in shares_of(root):
            print(share)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
