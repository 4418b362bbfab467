"""What goes to the package index: metadata, links, changelog, and the two archives."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from docs.make_changelog import changelog, fragments

from unhang import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_readme_on_the_index_has_absolute_links_alone() -> None:
    text = (ROOT / "README.md").read_text()
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert "![" in text
    assert "https://raw.githubusercontent.com/unhang/unhang/main/docs/report.png" in links


def test_every_place_tells_the_same_version() -> None:
    assert PROJECT["project"]["version"] == __version__
    assert f'version = "{__version__}"' in (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    assert all(wanted.replace(">=", " >=") in recipe for wanted in PROJECT["project"]["dependencies"])


def test_the_changelog_holds_every_change_once() -> None:
    page = changelog(fragments())
    assert page.count("\n- ") == len(fragments())
    with pytest.raises(ValueError, match=r"changes/x\.md"):
        changelog({"x.md": "text"})
    with pytest.raises(ValueError, match=r"changes/x\.added\.md"):
        changelog({"x.added.md": " "})


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_wheel_and_sdist_hold_what_they_must(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "tools"), "build", "twine"]
    subprocess.run(pip, check=True, capture_output=True)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "tools")}
    dist = tmp_path / "dist"
    build = [sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, env=environ)
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True, env=environ)
    names = zipfile.ZipFile(wheel).namelist()
    wanted = ("unhang/cli/main.py", "unhang/stories/stories.toml", "share/man/man1/unhang.1", "licenses/LICENSE")
    assert all(any(name.endswith(end) for name in names) for end in wanted)
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]
    assert wheel.stat().st_size < 4e6
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/CHANGELOG.md") for name in archive.getnames())
