"""Answers of NCCL's RAS client, as text and as JSON: what is read of them, and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rules.cases import ras

from unhang.read.logs.case import log_case
from unhang.read.ras import reports_in
from unhang.read.sniff import Kind, kind_of

HEALTHY = ras.as_json(ras.communicator(ras.equal(range(8)), {}))


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (ras.report("OK"), "RAS: all ranks of 1 communicator agree"),
        (HEALTHY, "RAS: all ranks of 1 communicator agree"),
        (HEALTHY + "\n" + HEALTHY, "RAS: all ranks of 1 communicator agree (the last of 2 reports)"),
        (ras.behind(), "RAS: missing or differing ranks in 1 of 1 communicator"),
        (ras.CUT, "RAS: missing or differing ranks in 1 of 1 communicator, the report is cut off"),
        (ras.report("MISMATCH"), "RAS: missing or differing ranks in some communicators"),
        ("rank 3 agrees with all ranks", None),
        (ras.HALF.replace("ranks have", "ranks may have").splitlines()[2], None),
        (HEALTHY[:200], None),
    ],
)
def test_what_it_says_of_the_communicators(text: str, phrase: str | None) -> None:
    assert [p for p in log_case(text).present if p.startswith("RAS")] == ([phrase] if phrase else [])


def test_a_line_made_of_json_stands_where_its_communicator_begins() -> None:
    case = log_case(ras.LAGS_JSON)
    (behind,) = reports_in(case.events, case.log)[-1].counts[0].behind
    assert (behind.rank, behind.launched, behind.node, behind.pid) == (5, 83, "10.2.0.1", 4005)
    line = behind.event.source.line
    assert line is not None
    assert '"communicators": [' in ras.LAGS_JSON.splitlines()[line - 2]


def test_the_ranks_of_a_part_of_the_job_are_its_own() -> None:
    case = log_case(ras.report("MISMATCH", warnings=ras.FEW, gpus=16))
    assert [m.rank for m in reports_in(case.events, case.log)[-1].counts[0].behind] == [None, None]


@pytest.mark.parametrize("text", [ras.report("OK"), HEALTHY, ras.CUT, ras.NO_COMMA, ras.as_json()])
def test_it_is_an_output_whatever_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "answer_3.json").write_text(text)
    assert kind_of(tmp_path / "answer_3.json") is Kind.OUTPUT
