"""Which loops ask a store: where all ranks stand in one, no rank is left that could answer."""

from pathlib import Path

import pytest

from unhang.analyze.waits.polling import asks_store, meets_by_files, polled_by_test

PROGRAM = """\
def here(self):
    return self.store.check(["here"])
def meet(self):
    while not self.here():
        time.sleep(0.1)
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.1)
def work(store):
    while not store.check(["end"]):
        train()
"""


@pytest.mark.parametrize(("line", "asks", "awaits"), [(4, True, "`self.here()` to come true"), (7, False, "`os.path.exists(path)` to come true"), (10, True, "")])  # fmt: skip
def test_a_loop_that_asks_a_store(tmp_path: Path, line: int, asks: bool, awaits: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert asks_store(str(program), line + 1) is asks
    assert polled_by_test(str(program), line) == awaits


_MARKS = """\
def meet(folder, name):
    {makes}
    while len([f for f in os.listdir(folder) if f.startswith(name)]) < 2:
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("makes", "meets"),
    [("open(name, 'w').close()", True), ("(folder / name).touch()", True), ("log(name)", False), ("open(name)", False)],
)
def test_a_loop_that_looks_for_files_of_which_the_rank_has_left_one(makes: str, meets: bool, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_MARKS.format(makes=makes))
    assert meets_by_files(str(program), 4) is meets
