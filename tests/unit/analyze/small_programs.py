"""Small programs for tests of what the source shows, and lines and stacks of them."""

from __future__ import annotations

from pathlib import Path

from unhang.model import Frame, ThreadStack


def frame(file: Path, mark: str) -> Frame:
    """The line that ends with `# mark`, and the function that it is in."""
    lines = file.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(f"# {mark}"))
    heads = [line for line in lines[:at] if "def " in line and not line.lstrip().startswith("#")]
    return Frame(str(file), at + 1, heads[-1].split("def ")[1].partition("(")[0] if heads else "<module>")


def program(folder: Path, text: str, name: str = "job.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def thread(*frames: Frame) -> ThreadStack:
    return ThreadStack("Thread-1", frames, is_main=False)
