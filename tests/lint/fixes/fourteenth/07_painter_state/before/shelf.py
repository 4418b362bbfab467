import shutil
from pathlib import Path


def by_step(path):
    return int(path.name.split("-")[1])


def trim(folder, keep):
    if keep is None:
        return
    old = sorted(Path(folder).glob("checkpoint-*"), key=by_step)
    extra = len(old) - keep + 1
    for path in old[: max(extra, 0)]:
        shutil.rmtree(path)
