"""Which of many literal texts a line holds, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_GRAM = 4


class AnchorIndex:
    """Texts by the four characters with which they begin."""

    def __init__(self, anchors: Iterable[str]) -> None:
        found: dict[str, list[str]] = {}
        for anchor in sorted(anchors, key=lambda a: (-len(a), a)):
            found.setdefault(anchor[:_GRAM], []).append(anchor)
        self._short = [gram for gram in found if len(gram) < _GRAM]
        self._grams = {gram: anchors for gram, anchors in found.items() if len(gram) == _GRAM}

    def anchors_in(self, line: str) -> Sequence[str]:
        """The texts that a line holds, in the order in which they begin; some of them several times."""
        places = [(place, anchor) for anchor in self._short if (place := line.find(anchor)) >= 0]
        for place in range(len(line) - _GRAM + 1):
            if (begins := self._grams.get(line[place : place + _GRAM])) is not None:
                places.extend((place, anchor) for anchor in begins if line.startswith(anchor, place))
        places.sort(key=lambda found: found[0])
        return [anchor for _, anchor in places]
