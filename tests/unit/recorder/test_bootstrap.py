from __future__ import annotations

from pathlib import Path

from jobs import BOOTSTRAP, environment, python, write

SHOW = (
    "import sys; print('sitecustomize' in sys.modules, any('bootstrap' in p for p in sys.path), 'torch' in sys.modules)"
)


def _run(tmp_path: Path, run_dir: Path, own: str | None, code: str = SHOW) -> tuple[str, str, int]:
    env = environment(run_dir)
    if own is not None:
        write(tmp_path, "sitecustomize.py", own)
        env["PYTHONPATH"] = f"{BOOTSTRAP}:{tmp_path}"
    ended = python("-c", code, env=env)
    return ended.stdout.strip(), ended.stderr, ended.code


def test_no_other_sitecustomize(tmp_path: Path, run_dir: Path) -> None:
    assert _run(tmp_path, run_dir, None) == ("False False False", "", 0)


def test_users_sitecustomize_is_the_one_in_sys_modules(tmp_path: Path, run_dir: Path) -> None:
    code = "import sys; print(sys.modules['sitecustomize'].MINE, sys.modules['sitecustomize'].__file__)"
    out, err, rc = _run(tmp_path, run_dir, "MINE = 7\n", code)
    assert (out, err, rc) == (f"7 {tmp_path}/sitecustomize.py", "", 0)


def test_exception_in_users_sitecustomize_is_reported_as_python_does(tmp_path: Path, run_dir: Path) -> None:
    own = "raise ValueError('mine')\n"
    with_us = _run(tmp_path, run_dir, own)
    write(tmp_path, "sitecustomize.py", own)
    without = python("-c", SHOW, env={**environment(run_dir), "PYTHONPATH": str(tmp_path)})
    assert with_us == (without.stdout.strip(), without.stderr, without.code)
    assert "ValueError: mine" in with_us[1]


def test_import_error_of_something_else_is_reported(tmp_path: Path, run_dir: Path) -> None:
    out, err, rc = _run(tmp_path, run_dir, "import no_such_module_at_all\n")
    assert "no_such_module_at_all" in err
    assert (out, rc) == ("False False False", 0)


def test_without_run_dir_only_the_chain_remains(tmp_path: Path) -> None:
    env = environment("")
    code = "import sys; print([f for f in sys.meta_path if 'Torch' in type(f).__name__])"
    assert python("-c", code, env=env).stdout.strip() == "[]"


def test_nothing_but_what_the_interpreter_has_is_imported(tmp_path: Path, run_dir: Path) -> None:
    code = "import sys; print(sorted(sys.modules))"
    with_us = python("-c", code, env=environment(run_dir)).stdout
    without = python("-c", code, env={**environment(run_dir), "PYTHONPATH": ""}).stdout
    assert with_us == without


def test_torch_that_cannot_be_imported(tmp_path: Path, run_dir: Path) -> None:
    write(tmp_path, "torch.py", "VERSION = 'a stand-in'\n")
    env = environment(run_dir)
    env["PYTHONPATH"] = f"{BOOTSTRAP}:{tmp_path}"
    ended = python("-c", "import torch; print(torch.VERSION)", env=env)
    assert (ended.stdout, ended.stderr, ended.code) == ("a stand-in\n", "", 0)
    assert not (run_dir / "ranks").exists()


RAY = """
def init(address=None, **given):
    return given.get("runtime_env")
"""


def test_workers_of_ray_with_a_path_of_their_own_are_led_here(tmp_path: Path, run_dir: Path) -> None:
    write(tmp_path, "ray.py", RAY)
    env = environment(run_dir)
    env["PYTHONPATH"] = f"{BOOTSTRAP}:{tmp_path}"
    code = """
import ray
given = {"env_vars": {"PYTHONPATH": "/libs", "A": "1"}, "pip": ["x"]}
for one in (given, {"env_vars": {"A": "1"}}, {"env_vars": None}, None, "env.yaml"):
    print(ray.init(runtime_env=one))
print(ray.init("auto"), given["env_vars"]["PYTHONPATH"], ray.init.__name__)
"""
    ended = python("-c", code, env=env)
    led = {"env_vars": {"PYTHONPATH": f"{BOOTSTRAP}:/libs", "A": "1"}, "pip": ["x"]}
    others = ({"env_vars": {"A": "1"}}, {"env_vars": None}, None)
    expected = [*map(str, (led, *others)), "env.yaml", "None /libs init"]
    assert (ended.stdout.splitlines(), ended.stderr, ended.code) == (expected, "", 0)


def test_children_with_a_path_of_their_own_are_led_here(run_dir: Path) -> None:
    code = """
import os, subprocess, sys
def path(**given):
    asked = "import os; print(os.environ.get('PYTHONPATH', 'none'))"
    return subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, **given).stdout.decode().strip()
print(path(), path(env=dict(os.environ, PYTHONPATH="/libs")), path(env={"PYTHONPATH": "/libs"}), path(env={}))
del os.environ["PYTHONPATH"]
print(path(), path(env=os.environ), os.environ.get("PYTHONPATH"))
print(subprocess.Popen(["true"], -1, None, None, None, None, None, True, False, None, {}).wait())
"""
    ended = python("-c", code, env=environment(run_dir))
    first = f"{BOOTSTRAP} {BOOTSTRAP}:/libs /libs none"
    assert (ended.stdout.splitlines(), ended.stderr) == ([first, f"{BOOTSTRAP} {BOOTSTRAP} None", "0"], "")


def test_a_ray_that_is_none_or_fails_is_left_alone(tmp_path: Path, run_dir: Path) -> None:
    env = environment(run_dir)
    env["PYTHONPATH"] = f"{BOOTSTRAP}:{tmp_path}"
    write(tmp_path, "ray.py", "NAME = 'another ray'\n")
    assert python("-c", "import ray; print(ray.NAME)", env=env).stdout == "another ray\n"
    write(tmp_path, "ray.py", "raise RuntimeError('broken')\n")
    assert "RuntimeError: broken" in python("-c", "import ray", env=env).stderr
