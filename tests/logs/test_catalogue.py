"""The catalogue of messages: its tables parse, each row finds itself, and no row claims more than its words hold."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest
from docs.make_lines import searched_text

from tests.logs import corpus
from tests.slowness import slowness
from unhang.diagnosis import diagnose
from unhang.model import CAUSES
from unhang.read.logs import all_anchors, all_patterns, by_anchor, matches, of_catalogue
from unhang.read.logs.catalogue import (
    BULK,
    FOLDER,
    LAYERS,
    PROGRAM,
    ROLES,
    SEARCHED,
    Row,
    anchor_of,
    best_cause,
    bulk_rows,
    compiled,
    emitter_of,
    example_of,
    literals,
    read_rows,
    searched_rows,
    weighed_rows,
    whole,
)

HEALTHY = sorted((Path(__file__).parent / "healthy").glob("*.log"))


def test_the_tables_are_whole() -> None:
    wrong = [
        row
        for row in (*weighed_rows(), *bulk_rows())
        if row.layer not in LAYERS
        or row.role not in ROLES
        or (row.cause and row.cause not in CAUSES)
        or not re.fullmatch(r"[\w.]+", row.emitter)
        or (row.versions and not re.fullmatch(r"[\d.]*-[\d.]*", row.versions))
    ]
    assert wrong == []


def test_only_a_root_that_was_weighed_names_a_cause() -> None:
    assert [row for row in weighed_rows() if row.cause and row.role != "root"] == []
    assert [row for row in bulk_rows() if row.cause or row.role == "root"] == []
    assert [row for row in weighed_rows() if row.cause and not (row.meaning or row.fix)] == []


def test_there_are_many() -> None:
    """As many as the emitters can print, and hundreds that establish a cause."""
    assert sum(len(row.templates) for row in weighed_rows() if row.cause) >= 700
    assert len(weighed_rows()) + len(bulk_rows()) >= 8000
    xids = {int(m[1]) for row in weighed_rows() if (m := re.search(r"^Xid.*: (\d+),", row.templates[0]))}
    assert len(xids) >= 155
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, 140, 149, 155, 171, 172} <= xids


def test_no_message_stands_twice_among_those_that_were_weighed() -> None:
    counts = Counter(template for row in weighed_rows() for template in row.templates)
    assert [template for template, count in counts.items() if count > 1] == []


def own(row: Row, template: str) -> bool:
    """Whether a row finds an example of its own template, by anchor and by expression."""
    example = example_of(template)
    return anchor_of(template) in example and compiled(row).search(example) is not None


def test_each_template_is_found_by_its_own_row() -> None:
    lost = [template for row in (*weighed_rows(), *bulk_rows()) for template in row.templates if not own(row, template)]
    assert lost == []


def test_each_weighed_template_leads_to_a_row_of_its_cause() -> None:
    """The most special row of a line may be another one, but never one that claims another cause."""
    wrong = []
    for row in weighed_rows():
        for template in row.templates:
            best = whole().rows_of(example_of(template))
            if not best or (best[0].cause or row.cause) != row.cause:
                wrong.append((template, row.cause, best[0].templates[0] if best else None))
    assert wrong == []


def test_what_names_a_cause_holds_enough_words() -> None:
    """A cause is not established by a text of three letters."""
    short = [t for row in weighed_rows() if row.cause for t in row.templates if sum(map(len, literals(t))) < 6]
    assert short == []


def test_what_is_searched_of_it_is_new() -> None:
    assert SEARCHED.read_text(encoding="utf-8") == searched_text(), "run `make docs`"


def test_a_search_of_logs_finds_them() -> None:
    """One search for all: the anchors of the catalogue are among those of the lines."""
    assert len(of_catalogue()) == len(searched_rows()) > 50
    known = by_anchor()
    for line in SEARCHED.read_text(encoding="utf-8").splitlines():
        anchor, _, template = line.partition("\t")
        assert anchor in known
        assert anchor in all_anchors()
        kinds = {pattern.kind for pattern, _ in matches(example_of(template))}
        assert any(kind.startswith("catalogue.") for kind in kinds), template


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in HEALTHY])
def test_healthy_logs_draw_nothing_from_it(path: Path) -> None:
    said = [f.rule for f in diagnose(path).findings]
    assert "known-message" not in said
    assert "unexplained-failure" not in said


def test_echoes_of_the_tables_of_lines_name_no_cause() -> None:
    """What a line's own table calls an echo, the catalogue does not call a root."""
    echoes = {p.kind for p in all_patterns() if p.role == "echo"}
    wrong = [
        (x.kind, x.text, row.cause)
        for x in corpus.lines()
        if x.is_of_kind and x.kind in echoes
        if (row := best_cause(x.text))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-hardware"),
        ("RuntimeError: CUDA error: out of memory", "gpu-oom"),
        ("Cuda failure 'out of memory'", "gpu-oom"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "gpu-hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 00000008", None),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=5.batch. Some of the step tasks have been OOM Killed.", "host-oom"),
        ("socketProgress: Connection closed by remote peer node-b<47494>", None),
        ("[E ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", None),
        ("NCCL WARN Connect to 10.0.0.2<4000> failed : Connection refused", None),
        ("my_out_of_memory_counter = 3", None),
        ("the word exit code 1270 is no code", None),
        ("AssertionError: rollout world_size: 3 is not divisible by infer_tp: 2", "launcher-misuse"),
        ("ValueError: vllm_tensor_parallel_size (2) must divide world size (3) evenly.", "launcher-misuse"),
        ("ValueError: embedding_dim (1023) must be divisible by world_size (3)", None),
        ("ValueError: length of the list must have length equal to the world size", None),
        ("RuntimeError: Requested 8 GPUs but only 2 available (total=2, allocated=0)", "device-mapping"),
        ("AssertionError: local_world_size (16) must be less than or equal to the number of visible devices (8).", None),
        ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", "misconfigured-env"),
        ("RuntimeError: the environment variable DATA_ROOT points to an empty folder", None),
        ("ImportError: tokenizers>=0.14,<0.19 is required for a normal functioning of this module, but found tokenizers==0.19.1.", "version-mismatch"),
        ("RuntimeError: Megatron-FSDP requires PyTorch >= 2.9", "version-mismatch"),
        ("ImportError: GatedDeltaNet requires flash-linear-attention>=0.3.2", "version-mismatch"),
        ("ValueError: the sampler requires temperature>=0.1", None),
        ("ValueError: page_size must be >= 1, got 0", None),
        ("ImportError: cannot import name 'DeviceMesh' from 'torch.distributed' (/env/lib/python3.11/site-packages/torch/distributed/__init__.py)", "version-mismatch"),
        ("ImportError: cannot import name 'build' from 'models' (/work/train/models/__init__.py)", "user-exception"),
        ("ImportError: cannot import name 'a' from partially initialized module 'b' (most likely due to a circular import) (/env/lib/site-packages/b.py)", "user-exception"),
        ("ModuleNotFoundError: No module named 'torch._six'", "version-mismatch"),
        ("ModuleNotFoundError: No module named 'torch.nn'; 'torch' is not a package", "user-exception"),
        ("ModuleNotFoundError: No module named 'transformers'", "user-exception"),
        ("/usr/bin/python3: No module named pybind11", None),
        ("ValueError: Error initializing torch.distributed using file:// rendezvous: path missing", "rendezvous-endpoint"),
        ("ValueError: Error initializing torch.distributed using tcp:// rendezvous: port number missing", "rendezvous-endpoint"),
        ("RuntimeError: No locks available", "misconfigured-env"),
        ("RuntimeError: flock: Function not implemented", "misconfigured-env"),
        ("OSError: [Errno 38] Function not implemented", None),
        ("BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')", "filesystem-race"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", None),
        ("OSError: [Errno 98] AF_UNIX path too long", "misconfigured-env"),
        ("RuntimeError: c10d::broadcast isn't implemented on backend [xpu].", "version-mismatch"),
        ("NCCL WARN socketFinalizeAccept: wrong magic 5448202f20544547 != 9c1f0a5d3e7b2244", None),
        ("NCCL WARN AllReduce : invalid type 15", "user-exception"),
        ("the reader : invalid type 15", None),
        ('earlyoom[77]: sending SIGTERM to process 4242 uid 1000 "python3": badness 900', "host-oom"),
        ('earlyoom[77]: sending SIGTERM to process 4242 uid 1000 "firefox": badness 900', None),
        ("mca_base_component_repository_open: unable to open mca_pml_ucx: libucp.so.0: cannot open shared object file: No such file or directory (ignored)", None),
        ("ValueError: The read timeout (0) must be positive.", None),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", None),
    ],
)  # fmt: skip
def test_causes_of_lines(line: str, cause: str | None) -> None:
    row = best_cause(line)
    assert (row.cause if row else None) == cause


@pytest.mark.parametrize(
    ("lines", "is_quoted"),
    [
        (["ERROR: the folder of tokens is empty"], True),
        (["[rank1]: 2026-01-02 03:04:05 - CRITICAL - the folder of tokens is empty", "leaving"], True),
        (
            ["Error in call to target 'train.Data':", "ValueError('the folder of tokens is empty')", "full_key: data"],
            True,
        ),
        (["ERROR: the folder of tokens is empty", "step 7 loss: 2.1"], False),
        (["ERROR: the folder of tokens is empty, connection reset by peer: Connection reset by peer"], False),
        (["E0000 00:00:1735711445.1 77 cuda_dnn.cc:8310] the folder of tokens is empty"], False),
        (["the word error says nothing of the folder of tokens is empty"], False),
    ],
)
def test_the_last_words_of_a_program_that_leaves_are_quoted(lines: list[str], is_quoted: bool, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    end = "failed (exitcode: 1) local_rank: 0 (pid: 4242) of binary: /usr/bin/python"
    log.write_text("\n".join([*lines, end, ""]))
    (found,) = diagnose(log).findings
    assert found.rule == "unexplained-failure"
    assert ("the folder of tokens is empty" in found.title) == is_quoted


@pytest.mark.parametrize(
    ("line", "name", "layer"),
    [
        ("node-a:97:221 [1] misc/socket.cc:49 NCCL WARN words that are new", "nccl", "nccl"),
        ("[W1123 10:00:00.1 ProcessGroupNCCL.cpp:12] words that are new", "c10d", "c10d"),
        ("[W1123 10:00:00.1 socket.cpp:12] [c10d] words that are new", "store", "store"),
        ("slurmstepd: error: words that are new", "slurm", "scheduler"),
        ("NVRM: words that are new", "nvrm", "driver"),
        ("[1700000000.1] [node:1:0] ib_mlx5.c:1 UCX  ERROR words that are new", "ucx", "transport"),
        ("(raylet) words that are new", "ray", "launcher"),
        ("bash: line 3: words that are new", "shell", "launcher"),
        ("the weather is fine today", PROGRAM.name, PROGRAM.layer),
    ],
)
def test_the_emitter_of_an_unknown_line(line: str, name: str, layer: str) -> None:
    assert emitter_of(line) == (name, layer)


def test_a_table_is_read_quickly() -> None:
    """5,000 rows cost 30 ms at most."""
    texts = [
        path.read_text(encoding="utf-8") for path in (*sorted(FOLDER.glob("*.rows")), *sorted(BULK.glob("*.rows")))
    ]
    spent = []
    for _ in range(3):
        began = time.process_time()
        count = sum(1 for text in texts for _ in read_rows(text))
        spent.append((time.process_time() - began) * 5000 / count)
    assert min(spent) <= 0.03 * slowness()


def test_how_a_table_is_written() -> None:
    text = """# A title.
@ some nccl raised
root gpu-oom 2.3-2.9 The device %s has %d bytes
    = Device %x is full
    It has no memory
    left.
    -> use less
# a remark
echo - - The peer is gone
"""
    first, second = read_rows(text)
    assert first == Row(
        "some", "nccl", "root", "gpu-oom", "2.3-2.9", ("The device %s has %d bytes", "Device %x is full"), "It has no memory left.", "use less", True
    )  # fmt: skip
    assert (second.cause, second.versions, second.is_raised) == ("", "", True)
    assert compiled(first).search("[0] Device 0xff is full")
    assert not compiled(first).search("MyDevice 0xff is full")
