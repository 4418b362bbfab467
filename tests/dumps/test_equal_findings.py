"""Ranks at fault in groups beside each other are one answer: all of them stand in the first line."""

from __future__ import annotations

import json
from pathlib import Path

import dumpgen

from tests.dumps.small_dumps import SCHEDULED, Call, call, job
from unhang.cli.main import main

WORLD, SIDE = 16, 4


def said(folder: Path, output_format: str = "text") -> str:
    """What the command prints of dumps."""
    target = folder.with_suffix(".said")
    assert main(["diagnose", str(folder), "--format", output_format, "--output", str(target)]) == 1
    return target.read_text()


def missing_in_groups(folder: Path, *missing: int) -> Path:
    """Sixteen ranks in four groups for data; some ranks do not come to the sum within theirs, behind which all ranks meet."""
    groups = {f"dp_{i}": range(i * SIDE, (i + 1) * SIDE) for i in range(WORLD // SIDE)}
    calls: dict[int, list[Call]] = {}
    for name, members in groups.items():
        is_stuck = not set(missing).isdisjoint(members)
        for rank in members:
            mine = [call("all_reduce"), call("all_reduce", group=name)] * 3 + [call("all_reduce")]
            if rank not in missing and is_stuck:
                mine.append(call("all_reduce", group=name, state=SCHEDULED, line=12))
            elif rank not in missing:
                mine += [call("all_reduce", group=name, line=12), call("all_reduce", state=SCHEDULED)]
            calls[rank] = mine
    return job(calls, {name: tuple(members) for name, members in groups.items()}).write(folder)


def test_ranks_that_are_missing_in_two_groups_stand_in_the_first_line(tmp_path: Path) -> None:
    text = said(missing_in_groups(tmp_path / "dumps", 10, 15))
    first = text.splitlines()[0]
    assert first.startswith(
        "HANG  ranks 10, 15 never issued all_reduce(8 Float) #4 of dp_2 and dp_3 at train (train.py:12)"
    )
    assert first.endswith("[who: 90%; why: not established]")
    assert "ALSO" not in text
    for rank in (10, 15):
        assert f"rank {rank} calls" in text
        assert f"for rank {rank} in all_reduce #4" in text
    assert "Look at ranks 10, 15 while the job hangs" in text


def test_the_report_keeps_the_cause_and_has_both_with_their_victims(tmp_path: Path) -> None:
    (finding,) = json.loads(said(missing_in_groups(tmp_path / "dumps", 10, 15), "json"))["findings"]
    assert (finding["cause"], finding["confidence"], finding["culprit_ranks"]) == ("unknown", 0.9, [10, 15])
    assert finding["victim_ranks"] == [r for r in range(WORLD) if r not in (10, 15)]
    assert (finding["process_group"], finding["location"]["line"]) == (None, 12)


def test_one_that_waits_for_the_other_is_no_second_culprit(tmp_path: Path) -> None:
    (finding,) = json.loads(said(missing_in_groups(tmp_path / "dumps", 10), "json"))["findings"]
    assert finding["culprit_ranks"] == [10]
    assert finding["process_group"]["pg_desc"] == "dp_2"


def test_faults_drawn_together_stand_in_the_first_line(tmp_path: Path) -> None:
    for seed, first_line in ((12, "ranks 10, 22 never"), (31, "ranks 3, 6 never"), (258, "ranks 4, 10 never")):
        drawn = dumpgen.random_job(seed)
        assert drawn.truth.others
        folder = tmp_path / str(seed)
        folder.mkdir()
        drawn.write(folder)
        assert said(folder).startswith(f"HANG  {first_line} issued ")
