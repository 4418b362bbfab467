"""torchfrtrace's own answers about folders of dumps: one process imports torch and forks a child for each of them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PER_ANSWER_S, ALTOGETHER_S = 20, 50
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")


@dataclass(frozen=True)
class Answer:
    """What torchfrtrace said. `error`: the exception that ended it, "" where it ended well.

    `peers_listed`: entries of the lists of other ranks that it made, one list for each collective that it looked at.
    """

    text: str
    error: str
    exit_code: int
    peers_listed: int

    @property
    def culprits(self) -> set[int]:
        """The ranks that it calls culprits."""
        return {int(rank) for rank in re.findall(r"Culprit rank (\d+)", self.text)}

    @property
    def missing(self) -> set[int]:
        """The ranks that it says did not join a collective."""
        return {int(rank) for ranks in _MISSING.findall(self.text) for rank in ranks.split(",")}

    @property
    def accused(self) -> set[int]:
        """All ranks that it names as those at fault."""
        return self.culprits | self.missing


def answers(questions: Mapping[str, Sequence[str]]) -> dict[str, Answer]:
    """For each name, what torchfrtrace answers to these arguments."""
    from tests import warm

    with tempfile.NamedTemporaryFile("w", suffix=".json") as asking:
        json.dump({name: list(arguments) for name, arguments in questions.items()}, asking)
        asking.flush()
        asked = warm.run([sys.executable, __file__, asking.name], Path.cwd(), ALTOGETHER_S)
    return {name: Answer(**answer) for name, answer in json.loads(asked.stdout).items()}


def _torchfrtrace() -> ModuleType:
    try:
        import tabulate  # noqa: F401
    except (
        ModuleNotFoundError
    ):  # torchfrtrace only prints tables with it; that it is missing is no fault of the analysis
        stand_in: Any = ModuleType("tabulate")
        stand_in.tabulate = lambda table, headers=(): str(table)
        sys.modules["tabulate"] = stand_in
    from torch.distributed.flight_recorder import fr_trace

    return fr_trace


def _walk_in_order() -> None:
    """Lets the files come in the order of their names: which rank is the first must not depend on the file system."""
    walk = os.walk
    os.walk = lambda top: ((root, folders, sorted(files)) for root, folders, files in walk(top))  # type: ignore[assignment]


def _count_peers() -> list[int]:
    """Counts the other ranks in each of its records of one collective."""
    from torch.distributed.flight_recorder.components.types import MatchStateRecord

    counted = [0]
    make = MatchStateRecord.__init__

    def counting(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        counted[0] += len(self.other_ranks)

    MatchStateRecord.__init__ = counting
    return counted


def _answer(tool: ModuleType, arguments: Sequence[str]) -> Answer:
    import logging

    said, error, code = io.StringIO(), "", 0
    for handler in logging.getLogger("Flight Recorder").handlers:
        handler.stream = said  # type: ignore[attr-defined]
    counted = _count_peers()
    _walk_in_order()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            tool.main(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as failure:  # noqa: BLE001 - whatever ends it is the answer
            error, code = traceback.format_exception_only(failure)[-1].strip(), 1
    return Answer(said.getvalue(), error, code, counted[0])


def _forked(tool: ModuleType, arguments: Sequence[str]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PER_ANSWER_S)
        with os.fdopen(writer, "w") as out:
            json.dump(asdict(_answer(tool, arguments)), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as back:
        told = back.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else asdict(Answer("", f"no answer within {PER_ANSWER_S} s", -1, 0))


if __name__ == "__main__":
    questions = json.loads(Path(sys.argv[1]).read_text())
    tool = _torchfrtrace()
    json.dump({name: _forked(tool, arguments) for name, arguments in questions.items()}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # an interpreter takes half a second to take torch apart
