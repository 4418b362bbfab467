"""Ranks without the recorder are looked at from outside: rarely, and only what stands still in several looks is suspected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unhang.watch import RunOptions, SeenOutside, suspicion
from unhang.watch.suspicion import Said, Silence

STANDS = SeenOutside("stalled", "ranks 0, 1 wait in all_reduce for rank 2", (0, 1))
ELSEWHERE = SeenOutside("stalled", "ranks 0, 1 wait in barrier for rank 2", (0, 1))
MOVES, UNKNOWN = SeenOutside("moves", "ranks 0, 1 go from call to call"), SeenOutside("unknown", "rank 2 computes")


class Watched:
    """A job whose looks are given, on a clock of its own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *seen: SeenOutside, asked_s: float | None = None
    ) -> None:
        self.now, self.looks, left = 100.0, list[float](), list(seen)

        def look(_: int, __: Path) -> SeenOutside:
            self.looks.append(self.now)
            self.now += 3
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(suspicion.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(suspicion, "unrecorded", lambda pid, only_launched, only_misled: [0, 1, 2])
        options = RunOptions(report_dir=folder, stall_after_s=asked_s, look_outside=look)
        self.silence = Silence(options, folder, 1)

    def said(self, seconds: float) -> list[Said]:
        until, found = self.now + seconds, []
        while self.now < until:
            if (said := self.silence.turn(self.now, 60.0)) is not None:
                found.append(said)
            self.now += 0.2
        return found


def test_the_same_standstill_in_several_looks_is_suspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, *found = Watched(tmp_path, monkeypatch, STANDS).said(150)
    assert "3 ranks run without unhang's recorder" in note.text
    assert {(s.kind, s.text, s.waiting) for s in found} == {("stalled", STANDS.text, (0, 1))}


@pytest.mark.parametrize(
    "seen", [(STANDS, ELSEWHERE) * 20, (STANDS, MOVES) * 20, (STANDS, UNKNOWN) * 20, (MOVES,), (UNKNOWN,)]
)
def test_what_moves_or_may_move_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[SeenOutside, ...]
) -> None:
    assert "stalled" not in {s.kind for s in Watched(tmp_path, monkeypatch, *seen).said(300)}


def test_looks_at_a_job_that_moves_become_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, MOVES)
    watched.said(3600)
    assert len(watched.looks) < 25


def test_the_users_own_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, STANDS, asked_s=5.0)
    assert [s.kind for s in watched.said(60)][:2] == ["note", "stalled"]


def test_what_was_seen_of_ranks_that_nobody_suspects_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ranks" / "r0-7"
    folder.mkdir(parents=True)
    (folder / "identity.json").write_text(json.dumps({"is_adopted": True}))
    watched = Watched(tmp_path, monkeypatch, STANDS).silence
    assert not watched.is_kept([folder.name], True, 0.0)  # it has announced itself
    (folder / "look.json").write_text("{}")
    assert watched.is_kept([folder.name], True, 0.0)
    watched.end(has_verdict=True)
    assert folder.exists()
    watched.end(has_verdict=False)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("is_alive", "in_rendezvous", "said"), [(False, True, "stalled"), (False, False, ""), (True, True, "")]
)
def test_a_launcher_that_waits_though_no_rank_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alive: bool, in_rendezvous: bool, said: str
) -> None:
    (tmp_path / "ranks" / "r0-7").mkdir(parents=True)
    monkeypatch.setattr(suspicion.evidence, "rendezvous_stacks", lambda pids: [{"frames": []}] if in_rendezvous else [])
    silence = Watched(tmp_path, monkeypatch, STANDS).silence
    now = silence._look_at
    said_at = {
        second: silence.turn(now + second, 15.0)
        for second in range(90)
        if silence.is_kept(["r0-7"], is_alive, now + second)
    }
    found = [(second, words.kind, words.text) for second, words in said_at.items() if words is not None]
    assert [kind for _, kind, _ in found] == ([said] if said else [])
    assert all(second >= 45 and text.startswith("no rank is left") for second, _, text in found)


def test_a_launcher_whose_ranks_are_started_again_is_not_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks" / "r0-7").mkdir(parents=True)
    monkeypatch.setattr(suspicion.evidence, "rendezvous_stacks", lambda pids: [{"frames": []}])
    silence = Watched(tmp_path, monkeypatch, STANDS).silence
    now = silence._look_at
    for second in range(300):
        is_kept = silence.is_kept(["r0-7"], second % 50 == 49, now + second)
        assert not is_kept or silence.turn(now + second, 15.0) is None
