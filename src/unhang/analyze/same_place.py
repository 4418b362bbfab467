"""Lines of one program in two folders: a checkout and its copy, or two branches side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from os.path import dirname, isabs, relpath

from unhang.model import CollectiveCall, Frame, user_frames

Stack = tuple[Frame, ...]


class Places:
    """How the lines of one run are named, so that those of the same program elsewhere get the same names.

    A file that both runs use is named by its path; any other one as it is seen from the folder of the run's script, so
    that two files of one name in different sub-folders stay different ones.
    """

    def __init__(self, stacks: Sequence[Stack], others: Sequence[Stack]) -> None:
        """`others`: those of the other run."""
        self._shared = _files(stacks) & _files(others)
        self._folder = _script_folder(stacks, self._shared)
        self._is_elsewhere = self._folder != _script_folder(others, self._shared)
        self._names: dict[str, str] = {}

    def of(self, stack: Stack) -> Frame | None:
        """The line of the user's code that makes the call."""
        user = user_frames(stack)
        if not user:
            return None
        file = user[0].file
        if file not in self._names:
            self._names[file] = self._name(file)
        return Frame(self._names[file], user[0].line, user[0].function)

    def _name(self, file: str) -> str:
        is_absolute = isabs(file) and isabs(self._folder)  # of others nobody knows where they lie
        return (
            relpath(file, self._folder) if is_absolute and not (file in self._shared and self._is_elsewhere) else file
        )

    def text(self, call: CollectiveCall | None) -> str:
        """The same for people; empty where no call or no stack is."""
        place = self.of(call.frames) if call is not None and call.frames else None
        return f"{place.file}:{place.line} in {place.function}" if place else ""


def _files(stacks: Sequence[Stack]) -> set[str]:
    return {frame.file for stack in stacks for frame in user_frames(stack)}


def _script_folder(stacks: Sequence[Stack], shared: Collection[str]) -> str:
    """Where most stacks begin: in a script, not in one that both runs use and that starts others."""
    began: Counter[tuple[int, str]] = Counter()
    for user in filter(None, map(user_frames, stacks)):
        own = [f for f in user if f.function == "<module>" and f.file not in shared]
        first = (own or user)[-1]
        began[2 if own else int(first.function == "<module>"), first.file] += 1
    (_, file), _ = max(began.items(), key=lambda item: (item[0][0], item[1], item[0][1]), default=((0, ""), 0))
    return dirname(file)
