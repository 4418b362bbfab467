"""What goes to the package index: metadata, links, changelog, and the two archives."""

from __future__ import annotations

import re
import shutil
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
TIMED_OUT = (
    "[rank1]:[E101 10:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=98, NumelOut=98, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out.\n"
)
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
    assert f'version: "{__version__}"' in (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_image_is_made_of_what_the_build_needs() -> None:
    docker = (ROOT / "packaging" / "Dockerfile").read_text()
    assert 'pip install --no-cache-dir "/src[analyze]"' in docker
    assert "analyze" in PROJECT["project"]["optional-dependencies"]
    left_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    built = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {"src", "examples", "pyproject.toml", "README.md", "LICENSE", *built["shared-data"]}
    assert wanted <= left_in
    assert all(Path(place).parts[0] in left_in for place in [*built["packages"], *built["force-include"]])


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("buildah"), reason="no buildah here")
def test_the_image_builds_and_runs(tmp_path: Path) -> None:
    """With buildah, which needs no daemon. The base image must be in its store or within reach."""
    buildah = ["buildah", "--storage-driver", "vfs"]
    trusted = [
        "-v",
        "/etc/ssl/certs:/etc/ssl/certs:ro",
        *(["-v", "/etc/pip.conf:/etc/pip.conf:ro"] if Path("/etc/pip.conf").exists() else []),
    ]
    how = ["--isolation", "chroot", "--network", "host", *trusted]
    build = [*buildah, "bud", *how, "-f", "packaging/Dockerfile", "-t", "unhang-test", "."]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if "initializing source docker://" in done.stderr:
        pytest.skip("the base image is out of reach")
    assert done.returncode == 0, done.stderr[-3000:]
    made = subprocess.run([*buildah, "from", "unhang-test"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        (tmp_path / "train.log").write_text(TIMED_OUT)
        for words, code in ((["--version"], 0), (["diagnose", "/work/train.log"], 1)):
            run = [*buildah, "run", "--isolation", "chroot", "-v", f"{tmp_path}:/work:ro", made, "--", "unhang", *words]
            ran = subprocess.run(run, capture_output=True, text=True)
            assert ran.returncode == code, ran.stderr
    finally:
        subprocess.run([*buildah, "rm", made], capture_output=True)


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
