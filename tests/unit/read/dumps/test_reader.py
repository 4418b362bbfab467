"""How many processes read the dumps: one alone where a second would cost more than it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unhang.read.dumps import DumpFile, Shard, reader

LITTLE, MUCH = 1 << 10, 300 << 10
asked: list[int | None] = []


class Engine:
    """Reads nothing; tells how many processes were asked for."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes

    def run(self, *given: object) -> Iterator[Shard]:
        """No shard."""
        asked.append(self.processes)
        yield from ()


@pytest.mark.parametrize(
    ("ranks", "size", "closer", "processes"),
    [
        (4, LITTLE, None, 1),
        (64, MUCH, None, 1),  # all of 19 MB
        (256, MUCH, None, 1),  # tails
        (1024, MUCH, 4, 1),
        (1025, MUCH, None, None),
        (1025, MUCH, 64, 1),
        (1025, MUCH, 96, None),  # all of 29 MB
        (4, 0, None, None),  # URLs of unknown size
    ],
)
def test_processes_by_the_amount_of_work(
    monkeypatch: pytest.MonkeyPatch, ranks: int, size: int, closer: int | None, processes: int | None
) -> None:
    monkeypatch.setattr(reader, "LocalEngine", Engine)
    asked.clear()
    dumps = reader.DumpReader([DumpFile(r, f"/no/such/{r}", size=size) for r in range(ranks)], use_cache=False)
    if closer is None:
        dumps.look()
    else:
        dumps.closer(range(closer))
    assert asked == [processes]


def test_an_engine_that_is_given_is_used() -> None:
    asked.clear()
    reader.DumpReader([DumpFile(0, "/no/such", size=1)], Engine(7), use_cache=False).look()  # type: ignore[arg-type]
    assert asked == [7]
