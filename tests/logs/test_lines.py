"""Each row of the tables of log lines against real lines, of its kind and alike but of another."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from docs.make_lines import MIN_ANCHOR, derived, guards_text, index_text

from tests.logs import corpus
from unhang.inside.guards import words as guards
from unhang.read.logs import (
    INDEX,
    TABLES,
    Pattern,
    all_patterns,
    by_anchor,
    is_echo,
    matches,
    table,
)
from unhang.read.logs.catalogue import ROLES

LAYERS = {"user", "framework", "torch", "transport", "device", "kernel", "launcher"}
OTHERS = [*table("machine/kernel"), *(row for name in TABLES for row in table(name))]


def rows_of(line: corpus.Line) -> list[Pattern]:
    return [p for p in all_patterns() if p.kind == line.kind]


def name_of(pattern: Pattern) -> str:
    return f"{pattern.kind} {pattern.regex}"


def test_lines_are_of_their_kind() -> None:
    wrong = [x for x in corpus.lines() if x.is_of_kind and x.kind not in {p.kind for p, _ in matches(x.text)}]
    assert wrong == []


def test_no_expression_matches_its_counter_examples() -> None:
    """Whatever anchors it has."""
    lines = [x for x in corpus.lines() if not x.is_of_kind]
    assert [x for x in lines if any(p.compiled.search(x.text) for p in rows_of(x))] == []
    assert [x for x in lines if not rows_of(x)] == []


def test_every_row_has_a_line() -> None:
    """A line that several rows of one kind match counts for each."""
    by_kind = corpus.examples()
    bare = [p for p in all_patterns() if not any(p.compiled.search(text) for text in by_kind.get(p.kind, ()))]
    assert [name_of(p) for p in bare] == []


def is_well_formed(pattern: Pattern) -> bool:
    return (
        re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", pattern.kind) is not None
        and all(len(anchor) >= (2 if pattern.is_background else MIN_ANCHOR) for anchor in pattern.anchors)
        and bool(pattern.anchors)
        and pattern.says in ("", "hang", "crash")
        and pattern.role in ROLES
        and pattern.layer in LAYERS
        and bool(pattern.emitter and pattern.table)
        and bool(pattern.compiled)
    )


def test_rows_are_well_formed() -> None:
    assert [name_of(p) for p in [*all_patterns(), *OTHERS] if not is_well_formed(p)] == []


def test_every_anchor_leads_somewhere() -> None:
    assert by_anchor()


def test_what_is_derived_from_the_tables_is_new() -> None:
    assert INDEX.read_text(encoding="utf-8") == index_text(), "run `make docs`"
    assert guards.ROWS.read_text(encoding="utf-8") == guards_text(), "run `make docs`"


# What common messages are; docs/design/0004-logs.md has the reasons.
MESSAGES = {
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41020": True,
    "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection reset by peer": True,
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete": True,
    "RuntimeError: Application timeout caused pair closure": True,
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error": True,
    "RuntimeError: NCCL communicator was aborted on rank 2.": True,
    "RuntimeError: Socket Timeout": True,
    "BrokenPipeError: [Errno 32] Broken pipe": True,
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes": True,
    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu": True,
    "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0": True,
    "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks": True,
    "RuntimeError: Gloo all_reduce failed: Write error": True,
    "ConnectionRefusedError: [Errno 111] Connection refused": False,
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
    "errno: 98, message: address already in use": False,
    "ValueError: corrupt sample": False,
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": False,
}


@pytest.mark.parametrize(("text", "wanted"), MESSAGES.items())
def test_what_is_an_echo(text: str, wanted: bool) -> None:
    assert (is_echo(text), guards.is_echo(text)) == (wanted, wanted)


def test_the_words_of_exceptions() -> None:
    lines, rows = corpus.lines("exceptions"), [row for name in TABLES for row in table(name)]
    assert {line.kind for line in lines if line.is_of_kind} == {row.kind for row in rows}
    found = [(x, any(r.kind == x.kind and r.compiled.search(x.text) for r in rows)) for x in lines]
    assert [x for x, is_found in found if is_found is not x.is_of_kind] == []


def test_the_guards_know_the_same_echoes() -> None:
    lines = [line.text for line in [*corpus.lines(), *corpus.lines("exceptions")]]
    assert [line for line in lines if is_echo(line) is not guards.is_echo(line)] == []
    assert sum(map(is_echo, lines)) > 20


def test_the_tables_are_in_the_package() -> None:
    lines = files("unhang.read.logs") / "lines"
    assert {"nccl.lines", "anchors.tsv"} <= {f.name for f in lines.iterdir()}


@pytest.mark.parametrize(
    ("regex", "anchors"),
    [
        ("Connection closed by (?:remote peer|localRank)", ("Connection closed by localRank", "Connection closed by remote peer")),
        (r"[Rr]ank \d+ (?:is )?gone for good", (" gone for good",)),
        (r"a\d+b", ()),
        (r"(?i)socket timeout", ()),
        (r"saving (?i:checkpoint)", ("saving ",)),
        (r"(?:lost the peer)?.*the peer is (?!not)gone", ("the peer is gone",)),
        (r"(?:store|storefront) is down|the \w+ has left", (" has left", "store is down", "storefront is down")),
        (r"(?:wait|waiting)+? at \d", (" at ",)),
    ],
)  # fmt: skip
def test_anchors_are_texts_that_the_expression_needs(regex: str, anchors: tuple[str, ...]) -> None:
    assert derived(regex) == anchors
