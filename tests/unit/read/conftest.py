"""Dumps of a real gloo job of two ranks, made once."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import warm
from tests.slowness import slowness

from unhang.read.restricted_pickle import PickleGuard

JOB = """
import json, os, sys, time, traceback
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c

def as_bytes(x):
    return x.encode() if isinstance(x, str) else x

def record(folder, name, pickled=True):
    data = as_bytes(c._dump_fr_trace() if pickled else c._dump_fr_trace_json())
    open(f"{folder}/{name}", "wb").write(data)

def run(rank, out, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    folder = f"{out}/r{rank}-{os.getpid()}"
    os.makedirs(folder)
    pair = dist.new_group([0, 1], group_desc="pair")
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(3, 2), group=pair)
    dist.all_to_all_single(torch.zeros(4), torch.ones(4))
    dist.barrier()
    identity = dict(rank=rank, world_size=2, pid=os.getpid(), backend="gloo", torch_version=torch.__version__)
    json.dump(identity, open(folder + "/identity.json", "w"))
    with open(folder + "/groups.jsonl", "w") as f:
        for name, desc in (("0", "default_pg"), ("1", "pair")):
            f.write(json.dumps(dict(pg_name=name, pg_desc=desc, ranks=[0, 1], timeout_s=1800.0, backend="gloo")) + "\\n")
    if rank == 1:
        time.sleep(1.0)
        record(folder, "flight.pickle")
        record(folder, "flight.json", pickled=False)
        os._exit(0)
    work = dist.all_reduce(torch.ones(7, dtype=torch.int64), async_op=True)
    time.sleep(0.3)
    record(folder, "flight.json", pickled=False)
    record(folder, "flight.pickle")
    try:
        work.wait()
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        frames = [[f.filename, f.lineno, f.name] for f in reversed(traceback.extract_tb(error.__traceback__))]
        made = dict(type="RuntimeError", message=str(error), time_ns=time.time_ns(), thread="MainThread", frames=frames)
        json.dump(made, open(folder + "/error.json", "w"))
    time.sleep(0.2)
    record(folder, "flight_exit.pickle")
    os._exit(1)

out, store = sys.argv[1:]
children = []
for rank in range(2):
    child = os.fork()
    if not child:
        run(rank, out, store)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
os._exit(0)  # an interpreter takes half a second to take torch apart
"""


@pytest.fixture(scope="session")
def gloo_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory: rank 1 leaves, rank 0 fails in its last all_reduce."""
    if find_spec("torch") is None:
        pytest.skip("torch is missing")
    run = tmp_path_factory.mktemp("gloo_job")
    (run / "ranks").mkdir()
    (run / "job.json").write_text('{"command": ["python", "train.py"], "started_ns": 1}')
    script = run / "job.py"
    script.write_text(JOB)
    done = warm.run([sys.executable, str(script), str(run / "ranks"), str(run / "store")], run, 50 * slowness())
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def real_dump(gloo_job: Path) -> bytes:
    """The pickle of rank 0."""
    return next(gloo_job.glob("ranks/r0-*/flight.pickle")).read_bytes()


@pytest.fixture(scope="module")
def guard():
    """One child for many pickles."""
    with PickleGuard(timeout_s=10) as made:
        yield made


@pytest.fixture(autouse=True)
def limited_memory() -> Iterator[None]:
    """Spoiled pickles may ask for any amount of memory; what reads them works under a limit, and so do the tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
