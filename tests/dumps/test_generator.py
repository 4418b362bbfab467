"""What the generator of dumps promises: torch's bytes, calls that obey the rules of collectives, and a truth that holds."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import dumpgen
import pytest
from dumpgen import FAULTS, HEALTHY, Job, Mesh, Recording, Spec, Style
from dumpgen.encode import FrameDict, to_pickle
from dumpgen.simulate import LOOK_AHEAD, meeting_keys

from tests import warm
from tests.dumps import frtrace
from tests.dumps.conftest import BENCHMARKS
from tests.slowness import slowness

SEEDS = range(120)
REAL_DUMP = """
import os
import sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(300):
    dist.all_reduce(torch.ones(3, 2))
dist.barrier(group=dist.new_group([0]))
with open(sys.argv[1], "wb") as file:
    file.write(_dump_fr_trace())
os._exit(0)  # an interpreter takes half a second to take torch apart
"""


@pytest.fixture(scope="module")
def real_dump(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump of torch, of 301 calls."""
    folder = tmp_path_factory.mktemp("real")
    script = folder / "job.py"
    script.write_text(REAL_DUMP)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "400"}
    done = warm.run([sys.executable, str(script), str(folder / "dump")], folder, 50 * slowness(), environment)
    assert done.returncode == 0, done.stderr
    return (folder / "dump").read_bytes()


def jobs() -> Iterator[Job]:
    """Some jobs of all kinds."""
    return map(dumpgen.random_job, SEEDS)


def test_the_bytes_are_those_of_torch(real_dump: bytes) -> None:
    dump = pickle.loads(real_dump)
    for entry in dump["entries"]:
        entry["frames"] = [FrameDict((f["name"], f["filename"], f["line"])) for f in entry["frames"]]
    assert len(dump["entries"]) == 301
    assert to_pickle(dump) == real_dump


def test_our_gloo_entries_have_the_fields_of_torch(real_dump: bytes) -> None:
    theirs = pickle.loads(real_dump)
    mesh, style = Mesh({"dp": 2}), Style(backend="gloo")
    ours = pickle.loads(dumpgen.build(Spec(mesh, style, Recording(backend="gloo"), entries=40)).dump(0))
    assert list(ours) == list(theirs)
    assert list(ours["entries"][0]) == list(theirs["entries"][0])
    assert ours["pg_config"] == theirs["pg_config"]
    assert {e["state"] for e in ours["entries"]} == {"scheduled"}


def test_the_fast_encoder_writes_the_same_bytes_as_the_plain_one() -> None:
    for job in islice(jobs(), 60):
        for rank in range(0, job.world, 3):
            assert job.pickled(rank) == to_pickle(job.contents(rank))


def test_a_job_of_many_equal_ranks_is_written_the_same_way() -> None:
    spec = Spec(Mesh({"tp": 4, "pp": 2, "dp": 16}), Style(layers=1, microbatches=1), entries=60, fault="missing")
    job = dumpgen.build(spec)
    for rank in range(0, job.world, 7):
        assert job.pickled(rank) == to_pickle(job.contents(rank))


def test_jobs_are_drawn_alike_from_equal_seeds() -> None:
    for seed in range(10):
        one, other = dumpgen.random_job(seed), dumpgen.random_job(seed)
        assert one.truth == other.truth
        assert [one.dump(r) for r in one.ranks] == [other.dump(r) for r in other.ranks]


def test_all_faults_and_losses_are_drawn() -> None:
    drawn = [dumpgen.random_job(seed) for seed in range(600)]
    kinds = {t.kind for job in drawn for t in (job.truth, *job.truth.others)}
    assert kinds == {HEALTHY, *FAULTS} - {"two_missing"}
    assert any(job.truth.others for job in drawn)
    assert any(job.loss.lost - job.truth.all_culprits for job in drawn)
    assert any(job.loss.truncated for job in drawn)
    assert any(job.loss.json for job in drawn)
    assert any(job.recording.only_active for job in drawn)
    assert any(job.seen(0).record_id[0] > 0 for job in drawn if len(job.seen(0)))
    assert {2, 32} <= {job.world for job in drawn}


def calls_of(job: Job) -> Iterator[tuple[int, dict[str, Any]]]:
    """The calls whose state is known, with the rank."""
    for rank in range(job.world):
        yield from ((rank, e) for e in job.entries(rank) if e["profiling_name"] != "nccl:coalesced" and e["retired"])


def test_completed_calls_are_complete_on_all_members_and_later_than_all_issues() -> None:
    for job in jobs():
        if job.recording.backend == "gloo" or job.recording.only_active or job.recording.version != "2.10":
            continue
        ranks_of = {(g.name, r): g.ranks for g in job.mesh.groups for r in g.ranks}
        by_call: dict[object, dict[int, dict[str, Any]]] = defaultdict(dict)
        for rank in range(job.world):
            for e in job.entries(rank):
                if not e["is_p2p"] and e["profiling_name"] != "nccl:coalesced":
                    ranks = ranks_of[e["process_group"][0], rank]
                    by_call[ranks, e["collective_seq_id"], e["profiling_name"], str(e["input_sizes"])][rank] = e
        for (ranks, *_), calls in by_call.items():  # type: ignore[misc]
            ended = [(r, e) for r, e in calls.items() if e["state"] == "completed"]
            if not ended or len(calls) < len(ranks):
                continue
            true_ns = {r: e["time_created_ns"] - job.clocks(r).skew_ns for r, e in calls.items()}
            for r, e in ended:
                assert e["time_discovered_completed_ns"] - job.clocks(r).skew_ns > max(true_ns.values())


def test_nobody_is_blocked_by_what_can_go_on() -> None:
    for job in jobs():
        final = job.final
        came = {(key, rank) for key, m in final.open_meetings.items() for rank, _ in m[3]}  # type: ignore[union-attr]
        for rank, plan in enumerate(final.plans):
            issued, arrived, done = final.issued[rank], final.arrived[rank], final.done[rank]
            for i in range(len(issued)):
                before = [k for k in (plan.barrier[i], plan.behind[i]) if k >= 0]
                if not arrived[i]:
                    assert not all(done[k] for k in before) or job.truth.kind == "device_stall"
                elif not done[i]:
                    keys = meeting_keys(job.mesh.groups_of[rank], job.mesh.places[rank], plan, i)
                    assert any((key, rank) in came for key in keys)
            n = len(issued)
            is_free = n < len(plan) and (n < LOOK_AHEAD or done[n - LOOK_AHEAD])
            if is_free and not (n and plan.blocks[n - 1] and not done[n - 1]):
                assert rank in job.truth.all_culprits, "only a host that is stuck stops by itself"


def test_open_calls_lack_a_member_or_differ() -> None:
    for job in jobs():
        for key, (left, _, _, _) in job.final.open_meetings.items():
            assert left or key in job.final.mismatched or job.truth.kind == "network_stall"


def test_victims_wait_for_culprits_in_the_end() -> None:
    """Who waits, waits for somebody who has not come, or with whom its call does not match, and so on to a culprit."""
    for job in jobs():
        if not job.truth.all_culprits or not job.final.open_meetings:
            continue
        waits: dict[int, set[int]] = defaultdict(set)
        for key, (_, _, _, members) in job.final.open_meetings.items():
            ranks = job.mesh.groups[key[0]].ranks
            needed = set(ranks if len(key) == 2 else (ranks[key[1]], ranks[key[2]]))
            for rank, _ in members:  # type: ignore[union-attr]
                waits[rank] |= needed - {rank}
        for victim in job.truth.victims:
            reached, frontier = {victim}, [victim]
            while frontier:
                more = waits[frontier.pop()] - reached
                reached |= more
                frontier += more
            assert reached & job.truth.all_culprits


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_hang_the_job_and_name_their_call(fault: str) -> None:
    job = dumpgen.build(
        Spec(Mesh({"tp": 2, "pp": 3, "dp": 4}), Style(layers=2, microbatches=2), entries=150, fault=fault)
    )
    truth = job.truth
    if fault == "slow":
        assert not job.final.open_meetings
        assert truth.culprits
        return
    assert truth.kind == ("missing" if fault == "two_missing" else fault)
    assert job.final.open_meetings
    assert truth.group[0]
    assert truth.seq > 0
    assert truth.frame[0].endswith("model.py")
    assert bool(truth.culprits) is (fault != "network_stall")
    assert set(truth.victims) | truth.all_culprits == set(range(job.world))
    if fault not in ("p2p_cycle", "network_stall"):
        assert truth.awaited[0].waiters
    assert (job.written_ns - job.final.last_ns) == 600_000_000_000


def test_a_healthy_job_completes_and_a_live_one_is_under_way() -> None:
    mesh, style = Mesh({"tp": 2, "pp": 2, "dp": 2, "ep": 2, "cp": 2}), Style(layers=2, microbatches=2)
    finished = dumpgen.build(Spec(mesh, style, entries=100))
    assert not finished.final.open_meetings
    assert all(
        e["state"] == "completed" for r in range(finished.world) for e in finished.entries(r) if not is_member(e)
    )
    recording = Recording(timing=True)
    states = set()
    for seed in range(8):
        live = dumpgen.build(Spec(mesh, style, recording, entries=100, live=True, seed=seed))
        states |= {e["state"] for r in range(live.world) for e in live.entries(r) if not is_member(e)}
    assert states == {"scheduled", "started", "completed"}


def is_member(entry: dict[str, Any]) -> bool:
    """Whether an entry is a member of a coalesced batch, whose state torch does not follow."""
    return bool(entry["frames"][0]["name"] == "batch_isend_irecv" and entry["profiling_name"] != "nccl:coalesced")


def test_ring_buffers_keep_the_last_entries() -> None:
    spec = Spec(Mesh({"tp": 2, "pp": 2}), Style(layers=2, microbatches=1), Recording(ring=30), entries=120)
    job = dumpgen.build(spec)
    whole = dumpgen.build(Spec(spec.mesh, spec.style, Recording(), entries=120))
    for rank in range(job.world):
        assert job.entries(rank) == whole.entries(rank)[-30:]


def test_a_file_is_cut_off_in_either_format() -> None:
    for json_ranks in (frozenset[int](), frozenset({0})):
        spec = Spec(Mesh({"dp": 2}), entries=40, fault="missing", loss=dumpgen.Loss(json=json_ranks))
        cut = replace(spec, loss=dumpgen.Loss(truncated={0: 0.5}, json=json_ranks))
        whole = dumpgen.build(spec).dump(0)
        assert dumpgen.build(cut).dump(0) == whole[: len(whole) // 2]


def test_json_has_no_frames_and_no_unknown_times() -> None:
    job = dumpgen.build(Spec(Mesh({"dp": 2}), entries=40, fault="missing", loss=dumpgen.Loss(json=frozenset({0, 1}))))
    dump = json.loads(job.dump(0))
    assert dump["version"] == "2.10"
    assert all("frames" not in e and e["time_discovered_started_ns"] == 0 for e in dump["entries"])
    assert dump["pg_status"]["0"]["last_started_collective"] == "-1"


def test_torchfrtrace_reads_what_we_write(tmp_path: Path) -> None:
    job = dumpgen.build(Spec(Mesh({"tp": 2, "dp": 2}), Style(layers=1, microbatches=1), entries=40, fault="size"))
    job.write(tmp_path)
    said = frtrace.answers({"size": [str(tmp_path)]})["size"]
    assert said.error == ""
    assert "mismatch" in said.text.lower()


@pytest.mark.parametrize(
    ("options", "loss", "decidable"),
    [
        ({"fault": "missing"}, {}, True),
        ({"fault": "missing"}, {"lost": frozenset({0, 1})}, False),
        ({"fault": "crashed"}, {}, True),
        ({"fault": "skip"}, {}, True),
        ({"fault": "device_stall"}, {}, False),
        ({"fault": "device_stall", "recording": Recording(timing=True)}, {}, True),
        ({"fault": "skip", "recording": Recording(only_active=True, has_frames=False)}, {}, False),
        ({"fault": "missing", "recording": Recording(version="2.2")}, {}, False),
        ({"fault": "slow"}, {}, False),
        ({"fault": HEALTHY}, {"lost": frozenset({0})}, True),
    ],
)
def test_what_the_evidence_decides(options: dict[str, Any], loss: dict[str, Any], decidable: bool) -> None:
    spec = Spec(
        Mesh({"tp": 2, "dp": 3}), Style(layers=1, microbatches=1), entries=60, loss=dumpgen.Loss(**loss), **options
    )
    assert dumpgen.decidable(dumpgen.build(spec)) is decidable


def test_a_stop_is_not_told_of_a_rank_that_another_stopped_rank_keeps_anyway() -> None:
    """Of two hosts that stop on their own: in the first job both are idle, in the second one waits for the other as well."""
    apart, behind = dumpgen.random_job(34), dumpgen.random_job(1_509_119)
    assert [len(job.truth.all_culprits) for job in (apart, behind)] == [2, 2]
    assert dumpgen.why_undecidable(apart) == ""
    assert dumpgen.why_undecidable(behind) == "its host may wait for a call that another fault keeps open"


def test_the_command_writes_dumps_and_their_truth(tmp_path: Path) -> None:
    out = tmp_path / "job"
    options = ["--ranks", "16", "--entries", "60", "--fault", "missing", "--tp", "2", "--lose", "3,7", "--layers", "1"]
    command = [sys.executable, BENCHMARKS / "make_dumps.py", out, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=50 * slowness())
    truth = json.loads((tmp_path / "job.truth.json").read_text())
    assert truth["kind"] == "missing"
    assert len(truth["culprits"]) == 1
    assert {p.name for p in out.iterdir()} == {f"nccl_trace_rank_{r}" for r in range(16) if r not in (3, 7)}
    listed = subprocess.run(
        [*command[:2], "--list"], check=True, capture_output=True, text=True, timeout=50 * slowness()
    ).stdout
    assert all(fault in listed for fault in FAULTS)
