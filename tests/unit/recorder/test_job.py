"""A whole training job with all hooks in it: forked from one process, two ranks, gloo."""

from __future__ import annotations

from pathlib import Path

from jobs import forked, header, rank_folder, read_json, read_lines, ring

from unhang.inside.recorder import recording

TRAIN = """
import inspect, os, pickle, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

rank = int(os.environ["RANK"])

def exchange(x):
    ops = [dist.P2POp(dist.isend, x, 1 - rank, tag=4), dist.P2POp(dist.distributed_c10d.irecv, torch.zeros(4), 1 - rank, tag=4)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()

dist.init_process_group("gloo")
x = torch.ones(4)
one = dist.new_group([0], group_desc="only zero")
both = dist.new_group(timeout=__import__("datetime").timedelta(seconds=77))
if rank == 0:
    dist.send(x, 1)
    open_work = dist.isend(x, group=both, group_dst=1, tag=9)
else:
    dist.recv(x, 0)
    open_work = dist.irecv(x, group=both, group_src=0, tag=9)
    open_work.wait()
exchange(x)
store = dist.distributed_c10d._get_default_store()
store.set("key", "1")
assert store.get("key") == b"1"
store.wait(["key"])

class Python(dist.Store):
    def get(self, key):
        return b"mine"

assert Python().get("a") == b"mine"
python_store = Python()
assert dist.PrefixStore("p", python_store).get("a") == b"mine"
try:
    dist.PrefixStore("p", python_store).wait(["a"])
    raise SystemExit("no error")
except RuntimeError as error:
    assert "pure virtual" in str(error), error
child = os.fork()
if child == 0:
    print(end="")
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
phases = set()
def note_phase(*_):
    folder = [d for d in os.listdir(os.environ["UNHANG_RUN_DIR"] + "/ranks") if d.endswith(f"-{os.getpid()}")][0]
    with open(os.path.join(os.environ["UNHANG_RUN_DIR"], "ranks", folder, "page.bin"), "rb") as file:
        phases.add(file.read(56)[48])
next(model.module.parameters()).register_hook(note_phase)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        import os
        held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
        assert not any("faulthandler.txt" in h or "ctl.sock" in h for h in held), held
        try: raise KeyError("in a worker")
        except KeyError: print("", end="")
        return torch.ones(4)
for batch in DataLoader(Data(), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
note_phase()
torch.save(model.state_dict(), os.devnull)
assert phases == {0, 3}, phases
assert pickle.loads(pickle.dumps(print)) is print
assert str(inspect.signature(print)).startswith("(*args, sep=' '")
assert sys.modules["torch.distributed.distributed_c10d"].isend is dist.isend
for _ in range(3):
    try:
        raise ValueError(f"bad batch {rank}")
    except ValueError as error:
        print("skipping", error, file=sys.stdout, flush=True)
dist.monitored_barrier()
both.monitored_barrier()
dist.barrier()
dist.destroy_process_group()
"""


def test_training_job(tmp_path: Path, run_dir: Path) -> None:
    ended = forked(tmp_path, run_dir, TRAIN)
    assert ended.codes == [0, 0], ended.stderr
    assert ended.stderr == ""
    assert sorted(ended.stdout.splitlines()[:-1]) == ["skipping bad batch 0"] * 3 + ["skipping bad batch 1"] * 3
    zero, one = rank_folder(run_dir, 0), rank_folder(run_dir, 1)
    _check_identity(zero)
    _check_groups(zero, one)
    _check_ring(zero, one)
    _check_page(zero)
    _check_handled(one, tmp_path)
    assert read_lines(zero / "notes.jsonl") == []
    assert (zero / "flight_exit.pickle").stat().st_size > 1000
    assert read_json(zero / "exit.json")["kind"] == "os._exit"
    assert {p.name for p in zero.iterdir()} == {
        *(
            "identity.json",
            "groups.jsonl",
            "page.bin",
            "handled.jsonl",
            "exit.json",
            "faulthandler.txt",
            "interrupt.txt",
            "facts.jsonl",
            "shapes.json",
        ),
        *("flight_exit.pickle", "ctl.sock", "fr.sock"),
    }
    assert (zero / "faulthandler.txt").read_text() == ""


def _check_identity(folder: Path) -> None:
    identity = read_json(folder / "identity.json")
    assert (identity["rank"], identity["world_size"], identity["local_rank"]) == (0, 2, 0)
    assert folder.name == f"r0-{identity['pid']}"
    assert identity["backend"] == "gloo"
    assert identity["page_format"] == 1
    assert identity["torch_version"]


def _check_groups(zero: Path, one: Path) -> None:
    groups = {g["pg_name"]: g for g in read_lines(zero / "groups.jsonl")}
    assert [(n, g["pg_desc"], g["ranks"]) for n, g in groups.items()] == [
        ("0", "default_pg", [0, 1]),
        ("1", "only zero", [0]),
        ("2", "undefined", [0, 1]),
    ]
    assert [g["timeout_s"] for g in groups.values()] == [1800, 1800, 77]
    assert [g["pg_name"] for g in read_lines(one / "groups.jsonl")] == ["0", "2"]


def _check_ring(zero: Path, one: Path) -> None:
    calls = [(r.kind, r.group, r.peer, r.index, r.tag) for r in ring(zero) if r.kind <= recording.IRECV]
    assert calls == [(1, "0", 1, 1, 0), (3, "2", 1, 1, 9), (3, "0", 1, 1, 4), (4, "0", 1, 1, 4)]
    calls = [(r.kind, r.group, r.peer, r.index, r.tag) for r in ring(one) if r.kind <= recording.IRECV]
    assert calls == [(2, "0", 0, 1, 0), (4, "2", 0, 1, 9), (3, "0", 0, 1, 4), (4, "0", 0, 1, 4)]
    assert [r.ended_ns > 0 for r in ring(one) if r.kind <= recording.IRECV] == [True] * 4
    assert [(r.tag, r.kind) for r in ring(zero) if not r.ended_ns] == [(9, recording.ISEND)], "posted, never waited for"
    waited = [[r.awaited_us > 0 for r in ring(folder) if r.kind <= recording.IRECV] for folder in (zero, one)]
    assert waited == [[False, False, True, True], [False, True, True, True]], "of posted ones that were waited for"
    for folder in (zero, one):
        created = [(r.index, r.detail) for r in ring(folder) if r.kind == recording.NEW_GROUP]
        assert created == [(1, "0"), (2, "0,1")], "also where the rank is no member"
        assert [r.index for r in ring(folder) if r.kind in (recording.INIT, recording.DESTROY)] == [1, 1]
        met = [(r.group, r.index) for r in ring(folder) if r.kind == recording.MONITORED_BARRIER]
        assert met == [("0", 1), ("2", 1)], "also where the method of a group is called"
    (batched,) = [r for r in ring(zero) if r.kind == recording.IRECV]
    assert [f.rpartition("/")[2].split(":")[2] for f in batched.frames][:2] == ["exchange", "<module>"]


def _check_page(folder: Path) -> None:
    words = header(folder)
    assert words[recording.STEPS] == 3
    assert words[recording.STEP_TIME] > 0
    assert words[recording.PHASE] == recording.NONE
    assert words[recording.INITIALIZED] == 2
    assert words[recording.FAILED_POLLS] == 0


def _check_handled(folder: Path, tmp_path: Path) -> None:
    entries = read_lines(folder / "handled.jsonl")
    assert {e["type"] for e in entries} == {"ValueError"}
    assert entries[0]["message"] == "bad batch 1"
    assert entries[0]["printed"] == "skipping bad batch 1"
    assert entries[0]["handler"][0] == str(tmp_path / "train.py")
    assert entries[0]["handler"][1] == entries[0]["frames"][0][1] + 2
