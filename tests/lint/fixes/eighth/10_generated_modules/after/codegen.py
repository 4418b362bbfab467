import importlib.util
import os
import sys
import textwrap

from together import on_main_then_share

FOLDER = os.environ.get("GENERATED_DIR", "generated_modules")
VERSION = "3"


def _render(name, body):
    header = f"# version {VERSION}\nimport torch\nfrom torch import nn\n\n\n"
    return header + textwrap.dedent(body).strip() + "\n"


def _write(path, source):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = path + ".part"
    with open(temporary, "w") as handle:
        handle.write(source)
    os.replace(temporary, path)
    return path


def _stale(path, overwrite):
    return overwrite or not os.path.isfile(path)


def build_module(name, body, overwrite=False):
    path = os.path.join(FOLDER, f"{name}.py")
    if on_main_then_share(_stale, path, overwrite):
        on_main_then_share(_write, path, _render(name, body))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
