"""The cases of stale-build-lock."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_STACK = """\
Process {0}: python -u main.py --local_rank={1}
Thread {0} (idle): "MainThread"
    {2}
    _jit_compile (torch/utils/cpp_extension.py:1522)
    load (torch/utils/cpp_extension.py:1284)
    main (main.py:273)
"""
_BATON = "wait (torch/utils/file_baton.py:42)"

CASES = {
    "stale-build-lock": (
        Fires(log_case(_STACK.format(811, 0, _BATON) + _STACK.format(812, 1, _BATON)), (0, 1)),
        Quiet(
            log_case(_STACK.format(811, 0, _BATON) + _STACK.format(812, 1, "communicate (subprocess.py:1154)")),
            "one of them builds, and the others wait for it",
        ),
        Quiet(log_case(_STACK.format(811, 0, "acquire (filelock/_api.py:302)")), "a lock of another kind"),
    ),
}
