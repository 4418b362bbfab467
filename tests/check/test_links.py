"""The search for bad ranks and links with real workers over gloo: healthy, a rank that sends rubbish, a link, a hang."""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path

import pytest

from tests.check.collectives_ranks import store
from unhang.check.areas import CheckOptions, Context, Member, Participants, meet
from unhang.check.links import search_links
from unhang.check.worker import chunk_elements
from unhang.model import Reading

pytestmark = pytest.mark.usefixtures("warm_workers")

WORLD = 4
FAULT = """
import importlib.abc, sys
class WhenTorchIsThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "unhang.check.collectives.suite":
            import time, torch, torch.distributed as dist
            real = dist.all_to_all_single
{body}
            dist.all_to_all_single = all_to_all_single
if "groups" in sys.orig_argv and "--rank={rank}" in sys.orig_argv:
    sys.meta_path.insert(0, WhenTorchIsThere())
"""


def search(case_limit_s: float = 20.0) -> dict[int, list[Reading]]:
    """All ranks as threads, each with a real worker."""
    from torch.distributed import PrefixStore, TCPStore

    found: dict[int, list[Reading]] = {}

    def be(rank: int, address: str) -> None:
        host, port = address.rsplit(":", 1)
        member = Member(rank, WORLD, rank, host=f"node{rank}", address=host, port=int(port), run_id="test")
        ours = PrefixStore("party", TCPStore(host, int(port), is_master=False, wait_for_workers=False))
        party: Participants = meet(member, 30, lambda *_: ours)
        options = CheckOptions(case_limit_s=case_limit_s)
        found[rank] = list(search_links(Context(party, options, {}), "gloo", "cpu"))  # type: ignore[arg-type]

    with store() as address:
        threads = [threading.Thread(target=be, args=(rank, address)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def put_fault(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, body: str) -> None:
    text = FAULT.format(rank=rank, body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 12))
    (folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def accused(found: dict[int, list[Reading]]) -> list[tuple[str, str]]:
    assert [readings for rank, readings in found.items() if rank and readings] == []
    return [(r.kind, r.subject) for r in found[0] if r.kind.startswith("links.bad")]


def test_healthy_ranks_are_through_in_two_rounds() -> None:
    found = search()
    assert accused(found) == []
    (told,) = found[0]
    assert told.kind == "links.search"
    assert told["is_complete"] is True
    assert told["rounds"] <= 3  # type: ignore[operator]


@pytest.mark.whole
def test_a_rank_that_sends_rubbish_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = """
    def all_to_all_single(received, sent):
        return real(received, sent + 1)
    """
    put_fault(monkeypatch, tmp_path, 2, fault)
    found = search()
    assert accused(found) == [("links.bad_rank", "2")]
    assert "elements are wrong" in found[0][1].text("reason")


def test_a_link_is_named_where_both_ends_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = """
    def all_to_all_single(received, sent):
        real(received, sent)
        size = len(received) // dist.get_world_size()
        for place in range(0, len(received), size):
            if int(received[place]) == 3 * 7919:  # what rank 3 sends to rank 0
                received[place] = -1
    """
    put_fault(monkeypatch, tmp_path, 0, fault)
    assert accused(search()) == [("links.bad_link", "0-3")]


def test_a_rank_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = """
    def all_to_all_single(received, sent):
        time.sleep(600)
    """
    put_fault(monkeypatch, tmp_path, 1, fault)
    found = search(case_limit_s=3.0)
    assert accused(found) == []
    assert [r.subject for r in found[0] if r.kind == "links.stuck"] == ["1"]


def test_what_is_sent_stays_small_in_large_groups() -> None:
    assert chunk_elements(2) * 4 == 256 << 10
    assert chunk_elements(4096) * 4 * 4096 <= 32 << 20
    assert chunk_elements(1 << 30) == 1
