"""Any file gives findings or one line that says why not; never a traceback, and never another file's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.lint.cards import LintSettings
from unhang.lint.checking import lint_paths, lint_text

GOOD = b"import torch.distributed as dist\n\ndef f(rank):\n    if rank == 0:\n        dist.barrier()\n"
UNREADABLE = {
    "python2": b"import torch.distributed\nprint 'x'\n",
    "half_typed": b"import torch.distributed as dist\ndef f(\n",
    "not_utf8": b"import torch.distributed\nx = '\xff\xfe'\n",
    "nul": b"import torch.distributed\n\0\0",
    "unknown_encoding": b"# coding: klingon\nimport torch.distributed\n",
    "deep_brackets": b"import torch.distributed\nx = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "deep_operators": b"import torch.distributed\nx = " + b"-" * 100_000 + b"1\n",
    "binary": bytes(range(256)) * 100 + b"torch.distributed",
}
READABLE = {
    "empty": b"",
    "no_newline": GOOD.rstrip(),
    "bom": b"\xef\xbb\xbf" + GOOD,
    "carriage_returns": GOOD.replace(b"\n", b"\r\n"),
    "latin1": b"# coding: latin-1\n" + GOOD + b"# \xe9\n",
    "half_characters": GOOD + b"x = '\\ud800'\n",
    "form_feed": b"\x0c\n" + GOOD,
    "generated": GOOD + b"".join(b"x%d = [%d]\n" % (i, i) for i in range(50_000)),
    "deep_ifs": GOOD + b"".join(b" " * i + b"if x:\n" for i in range(90)) + b" " * 90 + b"dist.barrier()\n",
    "long_chain": GOOD + b"if x: pass\n" + b"elif x: dist.barrier()\n" * 800,
    "long_sum": GOOD + b"y = " + b"x + " * 800 + b"x\n",
    "recursive": GOOD
    + b"def g(x):\n    g(x)\n    h(x)\ndef h(x):\n    g(x)\n    dist.barrier()\nclass A(A): pass\nclass B(C): pass\nclass C(B): pass\n",
    "empty_branches": GOOD + b"import os, time\nif os.path.exists(str(time.time())):\n    pass\nelse:\n    ...\n",
    "own_name": GOOD + b"x = x\nself.a = self.a\nfrom . import y as y\nfrom y import y\n",
    "tuple_of_parameters": GOOD
    + b"class G:\n    def __init__(self, a, b, c):\n        self.pair = (a, c)\n    def r(self):\n        g = self.pair[1]\n        return dist.get_rank(g)\n",
    "odd_imports": GOOD + b"from ..... import *\nfrom .. import a\nimport a.b.c\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_gives_one_line(name: str) -> None:
    result = lint_text("x.py", UNREADABLE[name], LintSettings())
    reason = result.unread["x.py"]
    assert reason
    assert "\n" not in reason
    assert result.found == []


@pytest.mark.parametrize("name", READABLE)
def test_what_can_be_read_is_judged(name: str) -> None:
    result = lint_text("x.py", READABLE[name], LintSettings())
    assert result.unread == {}
    assert [f.code for _, f in result.found][:1] == ([] if name == "empty" else ["LNT101"])


def test_one_bad_file_does_not_spoil_the_others(tmp_path: Path) -> None:
    for name, data in {**UNREADABLE, **READABLE}.items():
        (tmp_path / f"{name}.py").write_bytes(data)
    (tmp_path / "bad.ipynb").write_text('{"cells": ["torch.distributed"]}')
    (tmp_path / "link.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "round").symlink_to(tmp_path)
    result = lint_paths([str(tmp_path)], LintSettings(), None, 1)
    assert len(result.unread) == len(UNREADABLE) + 1
    assert len({path for path, _ in result.found}) == len(READABLE) - 1
