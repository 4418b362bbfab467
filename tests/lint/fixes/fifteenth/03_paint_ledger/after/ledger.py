import json
import shutil
from pathlib import Path


def kept(out):
    found = [p for p in Path(out).glob("checkpoint-*") if p.is_dir()]
    return sorted(found, key=lambda p: int(p.name.split("-")[1]))


def make_room(out, limit):
    old = kept(out)
    for folder in old[: max(0, len(old) - limit + 1)]:
        shutil.rmtree(folder)


def note(folder, step, epoch):
    Path(folder, "progress.json").write_text(json.dumps({"step": step, "epoch": epoch}))
