from __future__ import annotations

import pytest

from unhang.inside.guards.identity import flight_recorder_size


@pytest.mark.parametrize(
    ("environ", "words", "warns"),
    [
        ({}, "2,000 entries, about 1.0 MB per rank since torch 2.13", ""),
        ({"TORCH_FR_BUFFER_SIZE": "20000"}, "20,000 entries, about 10.0 MB per rank (TORCH_FR_BUFFER_SIZE)", ""),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "100000"}, "100,000 entries, about 50.0 MB", ""),
        ({"TORCH_FR_BUFFER_SIZE": "67108864"}, "67,108,864 entries", "up to 33,554.4 MB of host memory per rank"),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "off", ""),
        ({"TORCH_FR_BUFFER_SIZE": "64MB"}, "TORCH_FR_BUFFER_SIZE=64MB", "is not a number of entries"),
        ({"TORCH_FR_BUFFER_SIZE": "3", "TORCH_NCCL_TRACE_BUFFER_SIZE": "4"}, "3 entries, about 0.1 MB", ""),
    ],
)
def test_entries_are_shown_as_memory(environ: dict[str, str], words: str, warns: str) -> None:
    line, warning = flight_recorder_size(environ)
    assert words in line
    assert warns in warning
    assert bool(warning) == bool(warns)
