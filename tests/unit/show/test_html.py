from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import Any

import numpy as np
import pytest

from tests.unit.show.cases import SAMPLES, Sample, hang
from tests.unit.show.odd_cases import HOSTILE, hostile, large
from unhang.show.timeline import timeline
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
    data = data_of(text)
    assert data["because"].startswith("</script><script>alert(1)</script><!-- [bold red]x[/] \\x1b[31mred")
    assert "{{script}}" in data["because"]


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
    assert len(page(large(world=4096, calls=200)).encode()) < 10_000_000


def test_foreign_text_is_only_in_the_data() -> None:
    assert HOSTILE[:9] == "</script>"
    text = page(hostile())
    title = elements(text, "title")[0]
    assert "alert(1)" not in text.replace(elements(text, "script")[0], "").replace(title, "")
    assert "<" not in title
