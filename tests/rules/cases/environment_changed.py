"""The cases of environment-changed."""

from __future__ import annotations

from dataclasses import replace

from tests.rules.notation import log_case
from unhang.model import Case, Course
from unhang.model.case import LibraryChange
from unhang.testing import Fires, Quiet


def _gone(module: str, version: str = "3.9") -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/conda/envs/job/lib/python{version}/multiprocessing/spawn.py", line 116, in spawn_main\n'
        "    exitcode = _main(fd, parent_sentinel)\n"
        '  File "/app/train.py", line 1, in <module>\n'
        f"    import {module}\n"
        f"ModuleNotFoundError: No module named '{module}'\n"
    )


_BEGAN = "Python: 3.8.20 (default, Oct  3 2024, 15:24:27) \n"
_STEPS = "".join(f"step {i}, loss 0.{9 - i}\n" for i in range(1, 6))


def _seen_to_go() -> Case:
    course = Course(
        changed=(LibraryChange("/env/lib/python3.11/site-packages", 40.0, ("monai", "monai-1.3.dist-info")),)
    )
    return replace(log_case(_STEPS + _gone("monai"))(), course=course)


CASES = {
    "environment-changed": (
        Fires(log_case(_BEGAN + _gone("argparse")), ()),
        Fires(log_case(_STEPS + _gone("json.decoder".partition(".")[0])), ()),
        Fires(_seen_to_go, ()),
        Quiet(log_case(_STEPS + _gone("monai")), "a module that was never installed"),
        Quiet(log_case(_BEGAN + _gone("argparse", "3.8")), "a broken environment from the start"),
        Quiet(log_case(_STEPS + _gone("distutils")), "a module that Python no longer has"),
    ),
}
