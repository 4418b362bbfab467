"""The watcher among several: a proof is made of one moment, silence accuses nobody, a member leaves the judging to the hub that it hears."""

from __future__ import annotations

import json
import time
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.slowness import slowness

from unhang.analyze import alike
from unhang.analyze.alike import OuterGroup, Told
from unhang.analyze.situation import Situation
from unhang.read.gathered import alike_of
from unhang.testing import make_case
from unhang.watch import Headline, RunOptions, far, hub_agent, many
from unhang.watch import joined_agent as joined
from unhang.watch.agent import Agent
from unhang.watch.joined_agent import JoinedAgent
from unhang.watch.joining import Address, Join
from unhang.watch.messages import JointVerdict, Orders, Push, RankState, Said, State

VERDICT = {"kind": "proven", "detected_ns": 5, "onset_ns": 3, "waiting_ranks": [0, 1], "withdrawn": False}


class _Others:
    """In the place of the meeting: what other nodes have said, and what they hear."""

    def __init__(self, role: str) -> None:
        self.role, self.orders, self.heard_at = role, Orders(hub="us"), time.monotonic()
        self.inbox: SimpleQueue[Said] = SimpleQueue()
        self.published: list[State] = []
        self.answers: list[Any] = []  # called with the orders each time the hub gives some

        self.asked: dict[str, Any] = {}

    def publish(self, state: State, is_urgent: bool) -> None:
        self.published.append(state)

    def announce(self, nodes: Any = None) -> None:
        """Nobody waits."""

    def hear(self, node: str, rank: int, hub: str = "us", at: float | None = None, **state: Any) -> None:
        ranks = [RankState(f"r{rank}-{rank + 10}", state.pop("quiet_s", 5.0), **state.pop("of_rank", {}))]
        push = Push(
            1,
            f"name-{node}",
            "127.0.0.1",
            1,
            State(hub, ranks, **{"at": time.monotonic() if at is None else at, **state}),
        )
        self.inbox.put(Said(node, Address("127.0.0.1", 1), push, time.monotonic() if at is None else at))


Made = tuple[JoinedAgent, _Others, list[dict[str, Any]]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("LOOK_S", "CONFIRM_WAIT_S", "SECURE_S", "ACKNOWLEDGE_S"):
        monkeypatch.setattr(hub_agent, name, 0.1)

    def agent(role: str) -> Made:
        join = Join(Address("127.0.0.1", 1), "job", "a token that nobody knows")
        options = RunOptions(tmp_path, join=join, headline=lambda _: Headline("rank 1 is late", "late", (1,)))
        said, others = list[dict[str, Any]](), _Others(role)
        monkeypatch.setattr(joined, "Meeting", lambda *_: others)
        made = JoinedAgent(options, tmp_path, 1, -1, -1)
        made._send = said.append  # type: ignore[method-assign]
        return made, others, said

    return agent


def _one_rank(agent: JoinedAgent, others: _Others, **state: Any) -> None:
    others.hear("a", 1, **state)
    agent._take_in()


def test_a_hub_without_ranks_of_its_own_looks_at_the_others(make: Any) -> None:
    agent, others, _ = make("hub")
    _one_rank(agent, others, quiet_s=5.0)
    agent._on_quiet(time.monotonic())
    assert others.orders.look == 1


def test_a_look_that_one_node_did_not_make_proves_nothing(make: Any) -> None:
    agent, others, _ = make("hub")
    _one_rank(agent, others)
    agent._take_evidence(with_workers=False)
    assert others.orders.look == 1
    assert not agent._is_unchanged(agent._far(), {})
    assert others.orders.confirm == 0  # nobody was even asked


@pytest.mark.parametrize(("is_still", "still", "expected"), [(True, 1, True), (False, 1, False), (True, 0, False)])
def test_a_proof_needs_every_node_to_stand_still(make: Any, is_still: bool, still: int, expected: bool) -> None:
    agent, others, _ = make("hub")
    _one_rank(agent, others)
    others.hear("a", 1, looked=1)
    agent._take_evidence(with_workers=False)
    others.hear("a", 1, looked=1, still=still, is_still=is_still)
    assert agent._is_unchanged(agent._far(), {}) is expected


def test_numbers_that_another_hub_gave_do_not_count(make: Any) -> None:
    agent, others, _ = make("hub")
    _one_rank(agent, others)
    others.hear("a", 1, hub="the hub before", looked=9, still=9, is_still=True)
    agent._take_evidence(with_workers=False)
    assert not agent._is_unchanged(agent._far(), {})


def test_a_node_that_falls_silent_is_unknown_and_told_once(make: Any) -> None:
    agent, others, said = make("hub")
    others.hear("a", 1)
    others.hear("b", 2, at=time.monotonic() - 60)
    agent._take_in()
    now = time.monotonic()
    for _ in range(3):
        agent._listen_for_silence(now)
    assert [rank.rank for rank in agent._far()] == [1]
    assert agent._look_again_at == now
    assert [m["text"] for m in said] == [
        "node name-b (rank 2) has not been heard for 60 s: its watcher is gone, and its machine answers"
    ]
    others.hear("b", 2)
    agent._take_in()
    assert [rank.rank for rank in agent._far()] == [1, 2]


def test_many_silent_nodes_are_few_lines_and_no_long_wait(make: Any) -> None:
    agent, others, said = make("hub")
    for number in range(200):
        others.hear(f"n{number}", number, at=time.monotonic() - 60)
    agent._take_in()
    started = time.monotonic()
    agent._listen_for_silence(started)
    assert time.monotonic() - started < far.PROBE_S + 0.5 * slowness()
    assert agent._far() == []
    assert len(said) == joined.MOST_LINES + 1
    assert said[-1]["text"] == "196 more nodes have not been heard for as long"


def test_a_death_elsewhere_is_known_as_one_here(make: Any) -> None:
    agent, others, _ = make("hub")
    _one_rank(agent, others)
    _one_rank(agent, others, of_rank={"dead_s": 1.0, "exit_code": -9, "has_failed": True})
    (rank,) = agent._far()
    assert (rank.is_alive, rank.seen_end and rank.seen_end[1]) == (False, -9)
    assert agent._has_failed()
    assert agent._may_still_change(Situation(make_case({0: ["barrier@main:1"]}, world=1)), time.monotonic())


def test_a_verdict_is_told_before_the_end_and_the_end_after_it(make: Any) -> None:
    agent, others, said = make("hub")
    _one_rank(agent, others)
    agent._tell(VERDICT, will_end=True)
    told = others.orders.verdict
    assert told is not None
    assert (told.line, told.will_end, told.is_end, told.waiting) == ("rank 1 is late", True, True, [0, 1])
    assert any(message["event"] == "condemned" for message in said)


def test_a_member_leaves_the_judging_to_the_hub_that_it_hears(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, others, _ = make("member")
    looked: list[float] = []
    monkeypatch.setattr(Agent, "_on_quiet", lambda self, now: looked.append(now))
    agent._on_quiet(others.heard_at + 1)
    assert looked == []
    agent._on_quiet(others.heard_at + joined.HUB_SILENT_S + 1)
    others.role = "alone"
    agent._on_quiet(others.heard_at + 1)
    assert len(looked) == 2


@pytest.fixture
def member(make: Any, monkeypatch: pytest.MonkeyPatch) -> Made:
    agent, others, said = make("member")
    monkeypatch.setattr(joined, "take_evidence", lambda ranks, kills, **_: {})
    monkeypatch.setattr(joined, "is_unchanged", lambda ranks, dumps: True)
    return agent, others, said


def test_a_member_does_what_the_hub_wants_one_after_another(member: Made) -> None:
    agent, others, _ = member
    for number, order in enumerate(({"look": 4}, {"confirm": 4}, {"secure": 5})):
        others.orders = msgspec.structs.replace(others.orders, **order)  # type: ignore[arg-type]
        agent._exchange(0.0)
        assert len(others.published) == number + 1
    done = others.published[-1]
    assert (done.hub, done.looked, done.still, done.is_still, done.secured) == ("us", 4, 4, True, 5)
    others.orders = Orders(hub="its successor", look=1)
    agent._exchange(0.0)
    assert (others.published[-1].hub, others.published[-1].looked, others.published[-1].still) == (
        "its successor",
        1,
        0,
    )


def test_a_member_that_moved_since_the_look_says_so(member: Made) -> None:
    agent, others, _ = member
    rank: Any = SimpleNamespace(rank=0, movement=b"1", is_alive=True, folder=Path("r0-1"), died_at=0.0, seen_end=None)
    rank.quiet_s, rank.has_stepped, rank.has_failed = (lambda now: 1.0), (lambda: True), (lambda: False)
    agent.ranks["r0-1"] = rank
    others.orders = msgspec.structs.replace(others.orders, look=1)
    agent._exchange(0.0)
    rank.movement = b"2"
    others.orders = msgspec.structs.replace(others.orders, confirm=1)
    agent._exchange(0.0)
    assert (others.published[-1].still, others.published[-1].is_still) == (1, False)


def _joint(**changes: Any) -> JointVerdict:
    return msgspec.structs.replace(JointVerdict(1, "proven", "rank 1 is late", "node0:/r", [0], 3), **changes)


def test_a_member_shows_the_verdict_once_and_ends_when_all_do(member: Made) -> None:
    agent, others, said = member
    for verdict in (_joint(will_end=True), _joint(will_end=True), _joint(will_end=True, is_end=True)):
        others.orders = msgspec.structs.replace(others.orders, verdict=verdict)
        agent._exchange(0.0)
    assert [m["event"] for m in said] == ["joint", "verdict"]
    assert said[0]["line"] == "rank 1 is late"
    assert others.published[-1].seen == 1


def test_an_end_that_was_promised_comes_though_the_hub_is_gone(member: Made) -> None:
    agent, others, said = member
    others.orders = msgspec.structs.replace(others.orders, verdict=_joint(will_end=True))
    agent._exchange(0.0)
    others.role = "seeking"
    agent._exchange(0.0)
    assert said[-1] == {"event": "verdict", "kind": "proven", "end": True}


def test_a_verdict_that_ends_nothing_promises_nothing(member: Made) -> None:
    agent, others, said = member
    others.orders = msgspec.structs.replace(others.orders, verdict=_joint(kind="suspected"))
    agent._exchange(0.0)
    others.role = "alone"
    agent._exchange(0.0)
    assert [m["event"] for m in said] == ["joint"]


def _told(mark: bytes, rank: int) -> Told:
    return Told(mark, (rank,), (OuterGroup(b"world", 6, 1),))


def test_of_many_ranks_few_nodes_send_their_files(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_agent, "MANY_RANKS", 4)
    monkeypatch.setattr(hub_agent, "SEND_S", 0.1)
    monkeypatch.setattr(alike, "MOST_NODES", 4)
    monkeypatch.setattr(alike, "LEAST_OF_MOST", 1)
    agent, others, _ = make("hub")
    nodes = {f"n{rank}": _told(b"late" if rank == 3 else b"usual", rank) for rank in range(6)}
    for name, told in nodes.items():
        others.hear(name, told.ranks[0], looked=1, told=told, world=8)
    others.hear("silent", 6, world=8)
    agent._take_in()
    agent._take_evidence(with_workers=False)
    assert sorted(others.asked) == ["n0", "n1", "n2", "n3"]
    assert others.asked["n3"][1] == (0, 1, 2, 3, 7)  # nobody told of rank 7: it counts as one that is not there
    written = json.loads((tmp_path / "alike.json").read_bytes())
    assert (written["world"], written["read"], written["unseen"]) == (8, [0, 1, 2, 3, 7], [6])
    assert written["is_whole"]


def test_a_member_of_many_sends_files_only_where_it_is_asked_to(member: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, others, _ = member
    monkeypatch.setattr(many, "told_of", lambda run_dir: _told(b"usual", 1))
    agent.packer.is_brief = True
    rank = agent.run_dir / "ranks" / "r1-11"
    rank.mkdir(parents=True)
    (rank / "identity.json").write_text('{"rank": 1}')
    (rank / "groups.jsonl").write_text('{"pg_name": "0", "ranks": [0, 1, 2, 3]}\n')
    others.orders = msgspec.structs.replace(others.orders, look=1)
    agent._exchange(0.0)
    assert (others.published[-1].looked, others.published[-1].told) == (1, _told(b"usual", 1))
    assert agent.packer.pack(everything=True) == ({}, [], True)
    others.orders = msgspec.structs.replace(others.orders, send=2, only=(1, 3))
    agent._exchange(0.0)
    assert others.published[-1].sent == 2
    files, _, _ = agent.packer.pack(everything=False)
    assert json.loads(files["ranks/r1-11/groups.jsonl"]) == {"pg_name": "0", "ranks": [1, 3], "left_out": 2}


def test_of_many_ranks_that_failed_the_first_are_read_and_nothing_is_known_of_the_others(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_agent, "MANY_RANKS", 4)
    monkeypatch.setattr(hub_agent, "MOST_FAILED", 2)
    monkeypatch.setattr(hub_agent, "SEND_S", 0.1)
    agent, others, _ = make("hub")
    for rank in range(6):
        failed = {"dead_s": 1.0 + rank, "exit_code": 1, "has_failed": True} if rank else {}
        others.hear(f"n{rank}", rank, of_rank=failed, world=8)
    agent._take_in()
    agent._read_failed()
    assert sorted(others.asked) == ["n4", "n5"]
    written = json.loads((tmp_path / "alike.json").read_bytes())
    assert (written["read"], written["is_whole"], written["nodes"]) == ([4, 5], False, ["n5", "n4"])
    assert alike_of(written).hidden == {0, 1, 2, 3, 6, 7}  # type: ignore[union-attr]
