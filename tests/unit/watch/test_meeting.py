"""Watchers that meet: who becomes the hub, what it hears, who follows a hub that is gone; and where they meet, by launcher and environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ports import free_port
from tests.unit.watch.conftest import until

from unhang.errors import WrongUsage
from unhang.watch import many
from unhang.watch import meeting as meetings
from unhang.watch.exchange import Refused
from unhang.watch.far import FarNode, Packer
from unhang.watch.joining import TOKEN_FILE, Address, Join, JoinWishes, find_join, first_host
from unhang.watch.many import Group
from unhang.watch.meeting import Meeting
from unhang.watch.messages import Push, RankState, Row, Said, State

TOKEN = "a token that nobody knows"


class Nodes:
    """Meetings of one job in this process."""

    def __init__(self, port: int, job: str = "job", token: str = TOKEN) -> None:
        self.join = Join(Address("127.0.0.1", port), job, token)
        self.all: list[Meeting] = []
        self.said: list[str] = []

    def add(self, name: bytes = b"{}", **changes: Any) -> Meeting:
        files = {"job.json": name}
        join = Join(**{**{f: getattr(self.join, f) for f in ("hub", "job", "token")}, **changes})
        one = Meeting(join, lambda everything: (files if everything else {}, [], True), self.said.append)
        one.publish(State(ranks=[RankState("r0-1", 0.5)]), is_urgent=True)
        one.start()
        self.all.append(one)
        return one


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(meetings, "TRY_EVERY_S", 0.1)
    monkeypatch.setattr(meetings, "HUB_LOST_S", 0.5)
    monkeypatch.setattr(meetings, "SETTLE_S", 4.0)
    them = Nodes(free_port())
    yield them
    for one in them.all:
        one.stop()
    assert not [t for t in threading.enumerate() if t.name == "unhang-nodes" and t.is_alive()]


def _heard(hub: Meeting) -> dict[str, Said]:
    """The last message of each node."""
    found = {}
    while not hub.inbox.empty():
        said = hub.inbox.get()
        if said.push is not None:
            found[said.node] = said
    return found


def _successors(hub: Meeting, *others: Meeting) -> None:
    """As the hub's watcher does: tells all who follows it."""
    listed = [(o.node, *o._own) for o in others if o._own is not None]
    hub.orders = msgspec.structs.replace(hub.orders, successors=listed)


def test_the_first_is_the_hub_and_hears_the_others(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    late = nodes.add(b'{"name": "late"}')
    until(lambda: late.role == "member")
    first = hub.inbox.get()
    assert first.push is not None
    assert (first.node, first.push.files) == (late.node, {"job.json": b'{"name": "late"}'})
    assert first.push.state.ranks[0].folder == "r0-1"
    hub.orders = msgspec.structs.replace(hub.orders, look=3)
    until(lambda: late.orders.look == 3)
    assert os.eventfd_read(late.woken) >= 1
    push = until(lambda: next((s.push for s in _heard(hub).values() if s.push and s.push.trip_ns), None))
    assert abs(push.offset_ns) <= push.trip_ns  # one clock: the error is at most the round trip
    assert nodes.said == []


def test_another_token_or_job_is_told_and_left_alone(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    stranger = nodes.add(token="another token, as long")
    until(lambda: any("token differs" in line for line in nodes.said))
    assert stranger.role == "alone"
    other = nodes.add(job="another job")  # takes the next port
    until(lambda: other.role == "hub")
    friend = nodes.add(job="another job")
    until(lambda: friend.role == "member")
    assert friend.hub == other.hub != hub.hub
    assert _heard(hub) == {}


def test_another_version_is_told_in_one_line(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    push = Push(2, "old", "127.0.0.1", 1, State())
    with pytest.raises(Refused, match="install one unhang on all nodes"):
        hub._on_message("old", msgspec.msgpack.encode(push))
    with pytest.raises(Refused, match="makes no sense"):
        hub._on_message("old", b"\x93")


def test_when_the_hub_is_gone_the_next_one_takes_over(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    second = nodes.add()
    until(lambda: second.role == "member")
    third = nodes.add()
    until(lambda: third.role == "member")
    _successors(hub, second, third)
    until(lambda: len(second.orders.successors) == len(third.orders.successors) == 2)
    hub.stop()
    until(lambda: second.role == "hub")
    until(lambda: third.node in _heard(second))
    until(lambda: third.role == "member")
    until(lambda: any(line.endswith("this node takes over") for line in nodes.said))


def test_nobody_hears_of_a_hub_that_is_gone_when_the_ranks_have_ended(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    second = nodes.add()
    until(lambda: second.role == "member")
    _successors(hub, second)
    until(lambda: len(second.orders.successors) == 1)
    second.publish(State(ranks=[RankState("r0-1", 0.5, dead_s=0.1)]), is_urgent=True)
    hub.stop()
    until(lambda: second.role == "hub")
    assert not any("is gone" in line for line in nodes.said)


def test_a_node_without_a_hub_judges_alone_and_joins_again(nodes: Nodes) -> None:
    port = nodes.join.hub.port
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    member = nodes.add()
    until(lambda: member.role == "member")
    hub.stop()
    until(lambda: member.role == "alone")
    assert any("judges alone" in line for line in nodes.said)
    again = nodes.add()
    until(lambda: again.role == "hub")
    assert again.hub == ("127.0.0.1", port)
    until(lambda: member.role == "member")


def test_a_watcher_that_ends_says_its_last_word(nodes: Nodes) -> None:
    hub, member = nodes.add(), None
    until(lambda: hub.role == "hub")
    member = nodes.add()
    until(lambda: member.role == "member")
    member.publish(State(is_over=True), is_urgent=True)
    member.stop()
    said = until(lambda: [s for s in [hub.inbox.get()] if s.push is not None and s.push.state.is_over])
    assert said[0].node == member.node


# Nodes that speak through another one


def test_a_node_passes_on_what_others_say_and_hear(nodes: Nodes) -> None:
    hub = nodes.add()
    until(lambda: hub.role == "hub")
    middle, behind = nodes.add(), nodes.add(b'{"name": "behind"}')
    until(lambda: middle._own is not None and behind.role == "member")
    hub.via[behind.node] = middle.node, middle._own
    said = until(lambda: [s for s in [hub.inbox.get()] if s.node == behind.node and not s.is_direct])[0]
    assert said.push.files == {"job.json": b'{"name": "behind"}'}
    until(lambda: [s for s in [hub.inbox.get()] if s.rows.keys() == {behind.node}])  # nothing is new but the time
    hub.asked = {behind.node: (7, (1, 2))}
    hub.orders = msgspec.structs.replace(hub.orders, look=3)
    hub.announce(hub.asked)
    until(lambda: (behind.orders.look, behind.orders.send, behind.orders.only) == (3, 7, (1, 2)))
    assert middle.orders.send == 0
    behind.publish(State(ranks=[RankState("r0-1", 0.5)], looked=3), is_urgent=True)
    until(lambda: [s for s in [hub.inbox.get()] if s.rows and s.rows[behind.node].looked == 3])
    middle.stop()
    del hub.via[behind.node]
    until(lambda: [s for s in [hub.inbox.get()] if s.node == behind.node and s.is_direct])
    assert nodes.said == []


def _state(at: float, *quiets: float, **more: Any) -> State:
    return State("hub", [RankState(f"r{i}-{i}", quiet_s) for i, quiet_s in enumerate(quiets)], at=at, **more)


@pytest.mark.parametrize(
    ("now", "row", "is_urgent"),
    [
        (_state(11.0, 1.5, 1.6), Row(11.0), False),  # nothing moved
        (_state(11.0, 0.1, 0.2), Row(11.0, 0.1), False),  # all did
        (_state(11.0, 0.1, 1.6), None, False),  # one did
        (_state(11.0, 0.1, 0.9), None, False),  # all did, and not as one
        (_state(11.0, 1.5, 1.6, looked=1), Row(11.0, looked=1), True),
        (_state(11.0, 1.5, 1.6, still=1, is_still=True), Row(11.0, still=1, is_still=True), True),
        (_state(11.0, 1.5, 1.6, secured=1), None, True),
        (_state(11.0, 1.5), None, True),
    ],
)
def test_only_what_is_new_travels(now: State, row: Row | None, is_urgent: bool) -> None:
    before = _state(10.0, 0.5, 0.6)
    group = Group()
    assert group.hear("a", Push(1, "a", "", 0, before))
    assert group.take()[0].keys() == {"a"}
    assert group.hear("a", Push(1, "a", "", 0, now)) is is_urgent
    assert group.take() == (({}, {"a": row}, []) if row else ({"a": Push(1, "a", "", 0, now)}, {}, []))


def test_a_row_says_what_the_message_said(tmp_path: Path) -> None:
    push = Push(1, "node7", "10.0.0.7", 4, _state(10.0, 0.5, 0.6))
    said = Said("abc", Address("10.0.0.7", 4), push, 100.0)
    node = FarNode(said, tmp_path)
    ranks = node.hear(push, said, "hub", keep_files=True)
    assert node.poll() is not None
    node.hear_row(Row(13.0), 103.1)
    assert [round(rank.quiet_s(104.0), 3) for rank in ranks] == [3.5, 3.6]
    assert not any(rank.moves() for rank in ranks)
    node.hear_row(Row(14.0, 0.2, looked=4, still=3, is_still=True), 104.1)
    assert (node.state.looked, node.state.still, node.state.is_still) == (4, 3, True)
    assert [round(rank.quiet_s(105.0), 3) for rank in ranks] == [0.2, 0.2]
    assert all(rank.moves() for rank in ranks)
    assert round(node.poll() or 0.0, 3) == 3.6
    assert not any(rank.moves() for rank in ranks)


def test_very_many_nodes_are_placed_and_placed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MOST_DIRECT", 2)
    monkeypatch.setattr(many, "GROUP", 2)
    push, them, made = Push(1, "n", "10.0.0.7", 4, State()), many.Passing(), dict[str, FarNode]()
    for name in "abcdef":
        made[name] = FarNode(Said(name, Address("10.0.0.7", ord(name)), push, 0.0), tmp_path)
        them.place(made[name], made)
    assert {name: through for name, (through, _) in them.via.items()} == {"d": "c", "e": "c"}
    them.lose("c")
    assert them.via == {}
    them.place(made["d"], made)
    assert them.via["d"][0] == "f"


# What the hub keeps


def _node(tmp_path: Path, **files: bytes) -> FarNode:
    push = Push(1, "node7", "10.0.0.7", 4, State("hub", [RankState("r3-99", 2.0)], looked=5), files)
    said = Said("abc", Address("10.0.0.7", 4), push, 100.0)
    node = FarNode(said, tmp_path)
    assert [r.rank for r in node.hear(push, said, "hub", keep_files=True)] == [3]
    node.write()
    return node


def test_only_files_of_a_run_directory_are_kept_and_no_pickle(tmp_path: Path) -> None:
    kept = {"job.json": b"{}", "ranks/r3-99/error.json": b"{}", "ranks/r3-99/flight.pickle": b'{"entries": []}'}
    bad = {
        "../../x": b"x",
        "/etc/x": b"x",
        "ranks/r3-99/../x": b"x",
        "ranks/r3-99/ctl.sock": b"",
        "verdict.json": b"{}",
    }
    bad |= {"ranks/r3-99/flight_exit.pickle": b"\x80\x04.", "ranks/x/proc.json": b"{}", "ranks/r3-99/proc.json\n": b""}
    node = _node(tmp_path, **kept, **bad)
    found = {str(p.relative_to(node.folder)) for p in node.folder.rglob("*") if p.is_file()}
    assert found == {*kept, "node.json"}
    assert not (tmp_path.parent / "x").exists()


def test_numbers_count_for_the_hub_that_gave_them_alone(tmp_path: Path) -> None:
    node = _node(tmp_path)
    assert node.state.looked == 5
    push = Push(1, "node7", "10.0.0.7", 4, State("another hub", [], looked=9))
    node.hear(push, Said("abc", node.address, push, 101.0), "hub", keep_files=True)
    assert node.state.looked == 0


def test_what_travels_is_what_changed(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "r0-5"
    folder.mkdir(parents=True)
    (folder / "page.bin").write_bytes(b"page" + bytes(1000))
    (folder / "error.json").write_text("{}")
    (folder / "flight.pickle").write_bytes(b"damaged")
    (folder / "ctl.sock").write_text("")
    packer = Packer(tmp_path)
    found, gone, is_whole = packer.pack(True)
    assert (found, gone, is_whole) == ({"ranks/r0-5/page.bin": b"page", "ranks/r0-5/error.json": b"{}"}, [], True)
    assert packer.pack(False) == ({}, [], True)
    (folder / "error.json").unlink()
    (folder / "exit.json").write_text("[]")
    assert packer.pack(False) == ({"ranks/r0-5/exit.json": b"[]"}, ["ranks/r0-5/error.json"], True)
    packer.pages_wanted += 1
    assert list(packer.pack(False)[0]) == ["ranks/r0-5/page.bin"]


# Where they meet

TORCHRUN = ["torchrun", "--nnodes", "2", "--node-rank=1", "--master-addr", "node0", "--nproc-per-node", "8", "train.py"]
ELASTIC = [
    "python",
    "-m",
    "torch.distributed.run",
    "--nnodes=1:4",
    "--rdzv-endpoint=node5:29400",
    "--rdzv_id",
    "7",
    "t.py",
]
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODELIST": "gpu[007-009],x1", "SLURM_JOB_ID": "5"}
TASKS = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("command", "env", "hub"),
    [
        (TORCHRUN, {}, "node0:29437"),
        (ELASTIC, {}, "node5:29437"),
        (["python", "t.py"], SLURM, "gpu007:29437"),
        (["python", "t.py"], TASKS, "10.0.0.1:29437"),
        (["python", "t.py"], {**TASKS, "UNHANG_JOIN": "other:5"}, "other:5"),
        (["python", "t.py"], {**TASKS, "UNHANG_JOIN_PORT": "77"}, "10.0.0.1:77"),
        (["python", "t.py"], {**TASKS, "UNHANG_JOIN": "off"}, None),
        (["python", "t.py"], {**TASKS, "WORLD_SIZE": "1"}, None),
        (["python", "t.py", "--nnodes", "2"], {}, None),
        (["torchrun", "--standalone", "--nproc-per-node", "8", "t.py"], {"SLURM_NODELIST": "a"}, None),
        (["torchrun", "--nnodes", "1", "t.py"], {}, None),
        (
            ["accelerate", "launch", "--num_machines", "2", "--main_process_ip", "n0", "--machine_rank", "1", "t"],
            {},
            "n0:29437",
        ),
        (["sbatch", "x"], {"SLURM_NODELIST": "gpu[1-4]", "SLURM_NNODES": "4"}, None),
    ],
)
def test_they_meet_where_the_launcher_says(command: list[str], env: dict[str, str], hub: str | None) -> None:
    found = find_join(JoinWishes(), {"UNHANG_TOKEN": TOKEN, **env}, command, None, pytest.fail)
    assert (str(found.hub) if found else None) == hub


def test_nodes_of_one_job_have_one_mark_and_others_another() -> None:
    def job(command: list[str], env: dict[str, str]) -> str:
        found = find_join(JoinWishes(), {"UNHANG_TOKEN": TOKEN, **env}, command, None, pytest.fail)
        assert found is not None
        return found.job

    assert job(TORCHRUN, {}) == job([w.replace("rank=1", "rank=0") for w in TORCHRUN], {"HOSTNAME": "b"})
    assert job(TORCHRUN, {}) != job([*TORCHRUN[:-1], "--master-port", "5", "t.py"], {})
    assert job(["t"], SLURM) == job(["t"], {**SLURM, "SLURM_PROCID": "0"}) != job(["t"], {**SLURM, "SLURM_JOB_ID": "6"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a[007-9,12],b", "a007"), ("n1,n2", "n1"), ("n[1-2]-ib", "n1-ib"), ("", ""), ("one", "one")],
)
def test_the_first_host_of_slurms_list(given: str, expected: str) -> None:
    assert first_host(given) == expected


def test_without_a_token_nobody_is_let_in_from_elsewhere() -> None:
    said: list[str] = []
    assert find_join(JoinWishes("node0"), {}, ["t"], None, said.append) is None
    assert find_join(JoinWishes("node0"), {"UNHANG_TOKEN": "short"}, ["t"], None, said.append) is None
    assert ["UNHANG_TOKEN" in line for line in said] == [True, True]
    assert find_join(JoinWishes("node0"), {}, ["t"], Path("/proc/nowhere"), said.append) is None


def test_a_token_in_a_folder_that_all_can_write_is_the_users_alone(tmp_path: Path) -> None:
    both = [find_join(JoinWishes("node0"), {}, ["t"], tmp_path / "shared", pytest.fail) for _ in range(2)]
    assert both[0] is not None
    assert both[0] == both[1]
    file = tmp_path / "shared" / TOKEN_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert both[0].token not in repr(both[0])
    file.chmod(0o644)  # others have read it
    said: list[str] = []
    assert find_join(JoinWishes("node0"), {}, ["t"], tmp_path / "shared", said.append) is None
    assert len(said) == 1


@pytest.mark.parametrize("asked", ["a:b", "a:70000", "a:1:2", "[::1:5", ":5"])
def test_an_address_that_is_none_is_told(asked: str) -> None:
    with contextlib.suppress(WrongUsage):
        find_join(JoinWishes(asked), {"UNHANG_TOKEN": TOKEN}, ["t"], None, pytest.fail)
        pytest.fail("it was taken")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with openssl")
def test_with_a_certificate_nobody_reads_along_or_stands_in_for_the_hub(nodes: Nodes, tmp_path: Path) -> None:
    certs = []
    for name in ("ours", "theirs"):
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=unhang"]
        subprocess.run([*make, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
        certs.append({"cert": cert, "key": key})
    hub = nodes.add(**certs[0])
    until(lambda: hub.role == "hub")
    friend = nodes.add(**certs[0])
    until(lambda: friend.role == "member")
    plain, wrong = nodes.add(), nodes.add(**certs[1])
    until(lambda: friend.node in _heard(hub))
    assert {plain.role, wrong.role} <= {
        "seeking",
        "hub",
    }  # never a member: each judges alone, or meets others at the next port
    assert {node for node in (plain.node, wrong.node) if node in _heard(hub)} == set()
