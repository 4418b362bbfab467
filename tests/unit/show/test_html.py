from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from tests.unit.show.cases import SAMPLES, Sample, evidence, hang
from tests.unit.show.odd_cases import HOSTILE, hostile, large
from unhang.model import Case, Fix, LogLine, Source, WaitEdge, WaitsFor
from unhang.show.stacks import rank_columns, rank_rows
from unhang.show.timeline import timeline
from unhang.show.verdict import issue_text
from unhang.show.web_page import page_data, render_html

ALL = {**SAMPLES, "hostile": hostile}


def page(sample: Sample) -> str:
    return render_html(sample.diagnosis, sample.case, sample.waits)


def elements(text: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)


def data_of(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(elements(text, "script")[0])
    return loaded


@pytest.mark.parametrize("name", ALL)
def test_the_page_needs_nothing_from_elsewhere(name: str) -> None:
    text = page(ALL[name]())
    addresses = set(re.findall(r"[a-z]+://[^\s\"'`<]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b|@import|url\((?!#)|\sfetch\(|XMLHttp", text)


@pytest.mark.parametrize("name", ALL)
def test_the_policy_allows_exactly_the_own_script_and_style(name: str) -> None:
    text = page(ALL[name]())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    for content in (elements(text, "script")[1], elements(text, "style")[0]):
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy[1]


def test_hostile_text_ends_no_element() -> None:
    text = page(hostile())
    assert len(re.findall(r"<script", text)) == 2
    assert len(re.findall(r"</script", text)) == 2
    assert "<!--" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    because = re.search(r'<p class="because">(.*?)</p>', text, re.DOTALL)
    assert because is not None
    assert html.unescape(because[1]).startswith("</script><script>alert(1)</script><!-- [bold red]x[/] \\x1b[31mred")
    assert "{{script}}" in because[1]


def test_the_page_never_writes_markup() -> None:
    script = elements(page(hang()), "script")[1]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


@pytest.mark.parametrize("name", ALL)
def test_the_same_case_gives_the_same_page(name: str) -> None:
    assert page(ALL[name]()) == page(ALL[name]())


def test_the_title_is_the_answer() -> None:
    assert elements(page(hang()), "title")[0].startswith("HANG: rank 0 called barrier as #161 of default_pg")


def unpack(packed: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the page's script does."""
    flat = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=np.uint8)
    columns, at = {}, 0
    for name, count, is_delta in packed["columns"]:
        values = np.ascontiguousarray(flat[at : at + 4 * count].reshape(4, count).T).view("<u4").ravel()
        columns[name] = np.cumsum(values, dtype=np.uint32) if is_delta else values
        at += 4 * count
    return columns


@pytest.mark.parametrize("name", SAMPLES)
def test_packed_arrays_come_back(name: str) -> None:
    sample = SAMPLES[name]()
    columns = unpack(page_data(sample.diagnosis, sample.case, sample.waits)["lanes"]["packed"])
    expected = timeline(sample.case)
    for column, values in expected.columns.items():
        np.testing.assert_array_equal(columns[column], values)
    np.testing.assert_array_equal(columns["offsets"], expected.offsets)
    assert columns["ranks"].tolist() == list(expected.ranks)


def test_stacks_part_after_the_frames_that_they_share() -> None:
    stacks = data_of(page(hang()))["stacks"]
    assert [f["kind"] for f in stacks["left"]["frames"]] == ["same", "same", "user", "user", "lib", "lib"]
    assert stacks["right"]["title"] == "rank 1 called all_reduce(2359296 Float) here"
    assert [f["kind"] for f in stacks["right"]["frames"]][:3] == ["same", "same", "user"]


def test_a_large_job_fits_a_page() -> None:
    assert len(page(large(world=4096, calls=40)).encode()) < 1_400_000


def test_the_markup_of_the_page_is_the_same_whatever_the_job_wrote() -> None:
    assert HOSTILE[:9] == "</script>"
    assert tags(page(hostile())) <= tags(page(hang())) | {"ul", "li"}


def tags(text: str) -> set[str]:
    """The elements of a page; a parser that reads it as a browser does."""
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.add(tag)

    Reader().feed(text)
    return found


def without_scripts(text: str) -> str:
    """What a reader without scripts and styles sees."""
    plain = re.sub(r"<(script|style)\b.*?</\1>|<section[^>]* hidden.*?</section>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", plain)).split())


def test_the_verdict_is_read_without_scripts() -> None:
    sample = hang()
    first = sample.diagnosis.findings[0]
    seen = without_scripts(page(sample))
    assert first.location is not None
    for said in (first.title, first.because, f"{first.location.file}:{first.location.line}", first.fixes[0].title):
        assert " ".join(said.replace("`", "").split()) in seen
    assert "3 wait for it directly" in seen


def fixed_by(fix: Fix) -> str:
    sample = hang()
    finding = replace(sample.diagnosis.findings[0], fixes=(fix,))
    text = render_html(replace(sample.diagnosis, findings=(finding,)), sample.case, sample.waits)
    return re.search(r"<article.*?</article>", text, re.DOTALL)[0]  # type: ignore[index]


def test_a_diff_is_coloured_copied_whole_and_says_how_to_apply_it() -> None:
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-if rank == 0:\n+if True:\n"
    card = fixed_by(Fix("Call it on every rank", "run it", patch=diff))
    copied = re.search(r'data-copy="([^"]*)"', card)
    assert copied is not None
    assert html.unescape(copied[1]) == diff
    assert 'class="row drop">-if rank == 0:' in card
    assert 'class="row add">+if True:' in card
    assert "git apply" in card


@pytest.mark.parametrize(
    ("fix", "is_copied"),
    [
        (Fix("x", "y", advice="train.py:3: take the call out of the branch"), False),
        (Fix("x", "y", setting="leave them as they are"), False),
        (Fix("x", "y", setting="NCCL_SOCKET_IFNAME=eth0"), True),
        (Fix("x", "y", command="ulimit -n 65536"), True),
    ],
)
def test_only_what_can_be_typed_can_be_copied(fix: Fix, is_copied: bool) -> None:
    assert ("data-copy" in fixed_by(fix)) is is_copied


def test_the_rule_of_the_verdict_is_explained_in_the_page() -> None:
    sample = hang()
    finding = replace(sample.diagnosis.findings[0], rule="never-issued")
    text = render_html(replace(sample.diagnosis, findings=(finding,)), sample.case, sample.waits)
    assert 'href="#rule"' in text
    assert "What it detects" in text[text.index('id="rule"') :]
    assert 'href="#rule"' not in page(hostile())


def test_the_last_lines_are_those_of_the_culprit_without_secrets_and_without_the_launchers_end() -> None:
    sample = hang()
    lines = [(1, "loss 0.3"), (0, "loss 0.4"), (0, "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345"), (None, "of nobody")]
    own = [LogLine(text, Source("log", "out.log", i), rank) for i, (rank, text) in enumerate(lines, 1)]
    case = replace(sample.case, log=tuple(own))
    log = page_data(sample.diagnosis, case, sample.waits)["log"]
    assert log["title"] == "The last lines of rank 0"
    assert [at for at, _ in log["lines"]] == ["2", "3"]
    assert "abcdefghijkl" not in str(log)
    ends = LogLine("Sending process 7 closing signal SIGTERM", Source("log", "out.log", 9))
    unnamed = tuple(replace(line, rank=None) for line in own)
    shown = page_data(sample.diagnosis, replace(case, log=(*unnamed, ends)), sample.waits)["log"]
    assert (shown["title"], len(shown["lines"])) == ("The last lines of the log", 4)


def test_a_row_of_the_table_tells_who_and_where_a_rank_is() -> None:
    sample = hang()
    rows = rank_rows(sample.case, sample.waits)
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert rows[0][1:4] == ("node-a", 4100, "waits")
    assert rows[0][5] == "train.py:41 in save_checkpoint()"
    columns = rank_columns(rows)["columns"]
    assert [c["name"] for c in columns] == ["Rank", "Host", "Process", "State", "Last call", "Line"]


def test_the_text_for_an_issue_is_markdown_that_nobody_can_break() -> None:
    sample = hang()
    said = issue_text(sample.diagnosis, sample.case, sample.waits)
    assert said.startswith("**HANG: rank 0 called barrier")
    assert "train.py" in said
    fence = replace(sample.diagnosis.findings[0], title="@all <b>x</b>", fixes=(Fix("t", "v", command="a\n```\nb"),))
    text = issue_text(replace(sample.diagnosis, findings=(fence,)), sample.case, sample.waits)
    assert "@all" not in text
    assert "\n````\na\n```\nb\n````\n" in text
    assert "\\<b\\>" in text


def test_a_rank_of_which_only_its_calls_are_known_is_said_to_be_waited_for() -> None:
    case = Case(ranks={rank: evidence(rank, state=None) for rank in (0, 1, 2)})
    waits = WaitsFor((WaitEdge(0, (1,), "p2p", "recv from rank 1"),), roots=(1,))
    assert [row[3] for row in rank_rows(case, waits)] == ["waits", "others wait for it", ""]
