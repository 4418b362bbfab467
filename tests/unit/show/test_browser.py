"""The page in a real browser: nothing that axe finds, nothing cut, nothing asked of the network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness
from tests.unit.show.cases import SAMPLES, Sample, hang
from tests.unit.show.odd_cases import hostile, large
from unhang.model import Fix, LogLine, Source
from unhang.show.web_page import render_html

_MISSING = "{} is not installed (it is in the dev extra)"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on this machine"),
    pytest.mark.timeout(240),
]


def whole() -> Sample:
    """The hang with a diff, a command, advice, a log, and a rule that has a page."""
    sample = hang()
    fixes = (
        Fix(
            "Call it on every rank", "run it", patch="--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-if rank == 0:\n+if True:\n"
        ),
        Fix("See more", "a stack", command="py-spy dump --pid 4100", undo="nothing is changed"),
        Fix("Does not help: a longer timeout", "the call stays open"),
    )
    finding = replace(sample.diagnosis.findings[0], rule="never-issued", fixes=fixes)
    log = tuple(LogLine(f"step {i} loss 0.{i}", Source("log", "out.log", i), 0) for i in range(1, 40))
    diagnosis = replace(sample.diagnosis, findings=(finding, *sample.diagnosis.findings[1:]))
    return Sample(diagnosis, replace(sample.case, log=log), sample.waits)


PAGES = {**SAMPLES, "hostile": hostile, "whole": whole, "large": lambda: large(world=2048, calls=40, culprit=711)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # To import it takes half a second: not in each worker.
    sync_api = pytest.importorskip("playwright.sync_api", reason=_MISSING.format("playwright"))
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=60_000 * slowness()
        )
        yield started
        started.close()


def opened(browser: Any, sample: Sample, folder: Path, width: int = 1280, scheme: str = "light", **more: Any) -> Any:
    """The page, drawn; what its script or its policy complains of is an error of the test."""
    path = folder / "report.html"
    path.write_text(render_html(sample.diagnosis, sample.case, sample.waits), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page.set_default_timeout(30_000 * slowness())
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda said: page.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith(("file:", "blob:")) else page.complaints.append(asked.url)
    )
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(name: str, browser: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=_MISSING.format("axe-playwright-python"))
    for scheme, width in (("light", 1280), ("dark", 390)):
        page = opened(browser, PAGES[name](), tmp_path, width, scheme)
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found] == []
        for narrow in (width, 390):
            page.set_viewport_size({"width": narrow, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= narrow
        assert page.complaints == []
        page.close()


def test_ranks_are_filtered_sorted_and_paged(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, large(world=2048, calls=40, culprit=711), tmp_path)
    rows = page.locator("#rank-table tbody tr")
    assert rows.count() == 20
    assert rows.first.inner_text().startswith("711\t")
    page.fill("#rank-tools input", "1234")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["1234"]
    page.fill("#rank-tools input", "data.py")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["711"]
    page.fill("#rank-tools input", "")
    page.click("button:text-is('Next')")
    assert rows.first.inner_text().startswith("19\t")
    page.click("#rank-table .sort >> nth=0")
    page.click("#rank-table .sort >> nth=0")
    assert rows.first.inner_text().startswith("2047\t")
    assert page.locator("#rank-table th").first.get_attribute("aria-sort") == "descending"


def test_the_saved_trace_holds_every_call_of_the_page(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, whole(), tmp_path)
    page.click("text=Open in Perfetto")
    with page.expect_download() as download:
        page.click("#save-trace")
    events = json.loads(Path(download.value.path()).read_text())["traceEvents"]
    assert (
        len([e for e in events if e["ph"] == "X"]) == json.loads(page.locator("#data").text_content())["lanes"]["calls"]
    )
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    waiting = [e["name"] for e in events if e.get("args", {}).get("state", "").startswith("waiting")]
    assert "barrier #161" in waiting


def test_what_is_copied_for_an_issue_is_the_verdict(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, whole(), tmp_path)
    page.evaluate("copyText = async (text) => { window.copied = text; }")
    page.click("text=Copy for an issue")
    assert page.evaluate("window.copied").startswith("**HANG: rank 0 called barrier")
    assert page.locator("text=Copied").count() == 1


def test_without_scripts_the_verdict_the_fix_and_the_graph_are_there_and_no_dead_button(
    browser: Any, tmp_path: Path
) -> None:
    page = opened(browser, whole(), tmp_path, java_script_enabled=False)
    for said in (
        "rank 0 called barrier",
        "git apply fix.diff",
        "wait for it directly",
        "step 39 loss 0.39",
        "never-issued",
    ):
        assert page.get_by_text(said).first.is_visible()
    assert page.locator("button:visible").count() == 0
    page.click("text=About the rule")
    assert page.get_by_text("What it detects").is_visible()
