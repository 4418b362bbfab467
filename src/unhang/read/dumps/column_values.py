"""What entries say apart from numbers, as columns of raw values: read for one of many that are alike.

Legend of shapes: K entries, W their bytes, padded to whole words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.read.dumps.columns import MISSING, Batch, Bytes, Ints, digest
from unhang.read.dumps.layouts import EMPTY, TRUE, Got, Layout, strided

TEXTS = ("profiling_name", "state", "group", "desc", "thread_name", "thread_id")
SPANS = ("frames", "input_sizes", "output_sizes")


@dataclass
class Values:
    """Arrays `[K]` in the order in which the entries were asked for.

    `texts`: numbers of the memo, -1 for none. `spans`: digests of lists, 0 for those without members. `mixed_dtypes`: all
    dtypes of entries with several, by place.
    """

    texts: dict[str, Ints]
    flags: dict[str, npt.NDArray[np.int8]]
    spans: dict[str, npt.NDArray[np.uint64]]
    mixed_dtypes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def at(cls, batch: Batch, row_K: Ints) -> Values:
        """The values of these entries."""
        count = len(row_K)
        made = cls(
            {name: np.full(count, -1, np.int64) for name in (*TEXTS, "dtype", "others")},
            {name: np.full(count, MISSING, np.int8) for name in ("retired", "is_p2p")},
            {name: np.zeros(count, np.uint64) for name in SPANS},
        )
        for some, layout, raw in batch.by_layout(row_K):
            made._read(some, layout, raw)
        return made

    def _read(self, places: Ints, layout: Layout, raw: Bytes) -> None:
        """Those of entries of one layout."""
        for name, got in layout.texts.items():
            self.texts[name][places] = _gets(raw, got)
        for name, offset in layout.flags.items():
            self.flags[name][places] = raw[:, offset] == TRUE
        for name, (begin, end) in layout.spans.items():
            if end - begin > EMPTY:
                mask = np.zeros(raw.shape[1], np.uint8)
                mask[begin:end] = 0xFF
                self.spans[name][places] = digest(raw.view(np.uint64), mask) + np.uint64(2 * (end - begin)) | np.uint64(
                    1
                )
        if layout.dtypes:
            columns = np.stack([_gets(raw, got) for got in layout.dtypes], axis=1)
            self.texts["dtype"][places] = columns[:, 0]
            for i in np.flatnonzero((columns != columns[:, :1]).any(axis=1)).tolist():
                self.mixed_dtypes[int(places[i])] = tuple(columns[i].tolist())
        if layout.others:
            self.texts["others"][places] = np.maximum.reduce([_gets(raw, got) for got in layout.others])


def _gets(raw: Bytes, got: Got) -> npt.NDArray[Any]:
    return strided(raw, got.offset + 1, got.kind)
