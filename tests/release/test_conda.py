"""The conda recipe asks for what the package asks for, and rattler-build builds and tests a package from it.

conda-forge may be out of reach where tests run: the channel is made here, of this Python and of the index's wheels.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    project = PROJECT["project"]
    python = f"python {project['requires-python']}"
    wanted = [name.replace(">=", " >=") for name in project["dependencies"]]
    built_with = [name.replace(">=", " >=") for name in PROJECT["build-system"]["requires"]]
    assert RECIPE["requirements"]["run"] == [python, *wanted]
    assert RECIPE["requirements"]["host"] == [python, "pip", *built_with]
    assert RECIPE["context"]["version"] == project["version"]
    scripts = [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["about"]["license"] == project["license"]


# Run where rattler-build is: packages from folders, the index of the channel they make, and the build.
BUILD = """
import asyncio, json, pathlib, sys
from rattler.index import index_fs
from rattler_build import Package, assemble_package, build_recipes
channel, recipe, built = sys.argv[1:]
for package in json.load(sys.stdin):
    assemble_package(**package, output_dir=f"{channel}/linux-64", compression_level=1)
asyncio.run(index_fs(pathlib.Path(channel), None))
build_recipes([recipe], channel=[f"file://{channel}"], output_dir=built)
for test in Package.from_file(next(pathlib.Path(built).rglob("unhang-*.conda"))).run_tests(channel=[f"file://{channel}"]):
    print(test.success, *test.output, sep="\\n")
"""


def _python(folder: Path) -> dict[str, object]:
    """This Python, without what is installed beside it."""
    tree = folder / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (tree / "bin").mkdir(parents=True)
    base = Path(sys.base_prefix)
    binary = Path(sys.base_exec_prefix) / "bin" / f"python{version}"
    shutil.copy(binary.resolve(), tree / "bin" / f"python{version}")
    for name in ("python", "python3"):
        (tree / "bin" / name).symlink_to(f"python{version}")
    library = Path("lib") / f"python{version}"
    unwanted = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "idlelib", "tkinter")
    shutil.copytree(base / library, tree / library, ignore=unwanted, symlinks=True)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy(shared, tree / "lib", follow_symlinks=False)
    full = ".".join(str(n) for n in sys.version_info[:3])
    return {"name": "python", "version": full, "files_dir": str(tree), "depends": []}


def _wheels(folder: Path) -> list[dict[str, object]]:
    """What the recipe and its packages ask for, each as a package."""
    names = [n.replace(" ", "") for part in ("host", "run") for n in RECIPE["requirements"][part] if "python " not in n]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", str(folder / "wheels"), *names]
    subprocess.run(pip, check=True, capture_output=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages: list[dict[str, object]] = []
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        tree = folder / wheel.stem
        target = tree / "lib" / f"python{version}" / "site-packages"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(target)]
        subprocess.run([*install, str(wheel)], check=True, capture_output=True)
        shutil.rmtree(target / "bin", ignore_errors=True)
        meta = message_from_string(next(target.glob("*.dist-info/METADATA")).read_text())
        needs = [
            re.split(r"[^\w.-]", line)[0]
            for line in meta.get_all("Requires-Dist", [])
            if "extra ==" not in line and "python_version" not in line
        ]
        depends = ["python", *(name.lower() for name in needs)]
        packages.append(
            {"name": meta["Name"].lower(), "version": meta["Version"], "files_dir": str(tree), "depends": depends}
        )
    return packages


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_the_recipe_builds_a_package_whose_tests_pass(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    own = str(tools / "bin" / "python")
    subprocess.run(
        [own, "-m", "pip", "install", "-q", "py-rattler", "py-rattler-build"], check=True, capture_output=True
    )
    channel, built = tmp_path / "channel", tmp_path / "built"
    (channel / "linux-64").mkdir(parents=True)
    common = {"target_platform": "linux-64", "build_string": "0"}
    packages = [{**package, **common} for package in [_python(tmp_path), *_wheels(tmp_path)]]
    recipe = ROOT / "packaging" / "conda" / "recipe.yaml"
    build = [own, "-W", "ignore", "-c", BUILD, str(channel), str(recipe), str(built)]
    done = subprocess.run(build, input=json.dumps(packages), text=True, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    said = done.stdout.splitlines()
    assert said.count("True") == len(RECIPE["tests"])
    assert "False" not in said
    assert {"+ unhang --version", f"unhang, version {RECIPE['context']['version']}"} <= set(said)
