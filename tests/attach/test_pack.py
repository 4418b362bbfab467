"""One file to send: what is in it, what is not, and that it is judged like the folder."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from unhang.attach.folder import pack_to
from unhang.cli.diagnose import command as diagnose
from unhang.cli.reports import bundle as command
from unhang.errors import NotEvidence
from unhang.read.environment import redact_text

TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"


def report(folder: Path) -> Path:
    """A bundle of two ranks as `attach` leaves it: rank 1 sleeps."""
    bundle = folder / "report" / "bundle"
    for rank in (0, 1):
        own = bundle / "ranks" / f"r{rank}-{100 + rank}"
        own.mkdir(parents=True)
        inner = [{"filename": TORCH, "line": 1, "name": "all_reduce"}] if rank == 0 else []
        frames = [*inner, {"filename": "/x/train.py", "line": 20 + rank, "name": "main"}]
        thread = {"pid": 100 + rank, "os_thread_id": 100 + rank, "thread_name": "MainThread", "frames": frames}
        (own / "pyspy.json").write_text(json.dumps([thread]))
        (own / "identity.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pid": 100 + rank}))
        (own / "proc.json").write_text(json.dumps({"state": "S", "cpu_share": 0.0}))
        (own / "look.json").write_text(json.dumps({"looks": 5, "seconds": 3, "moved": False, "how": "it stands"}))
    environment = {"MASTER_ADDR": "localhost"}
    (bundle / "job.json").write_text(json.dumps({"attached": True, "environment": environment, "started_ns": 1}))
    (bundle / "outputs").mkdir()
    (bundle / "outputs" / "output_0.log").write_text("step 1\nHF_TOKEN=hf_abcdefghijklmnop\nhttps://me:word@host/x\n")
    (bundle.parent / "notes-of-mine.txt").write_text("not of unhang")
    os.symlink("/etc/passwd", bundle / "link.log")
    return bundle.parent


def test_it_holds_the_evidence_and_neither_secrets_nor_links_nor_other_files(tmp_path: Path) -> None:
    packed, size = pack_to(report(tmp_path), tmp_path / "out.tar.gz")
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        names = archive.getnames()
        assert all(member.isreg() for member in archive.getmembers())
        log = archive.extractfile("unhang-bundle/bundle/outputs/output_0.log")
        assert log is not None
        text = log.read().decode()
    assert len(packed.files) == len(names) == 10
    assert not [n for n in names if "link" in n or "notes" in n]
    assert size == (tmp_path / "out.tar.gz").stat().st_size
    assert "step 1" in text
    assert "abcdefghijklmnop" not in text
    assert "word" not in text


def test_whoever_gets_it_gets_the_same_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = report(tmp_path)
    done = CliRunner().invoke(command, [str(folder), "-o", "sent.tar.gz"], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert "unhang diagnose sent.tar.gz" in done.stderr
    firsts = []
    for path in (str(folder), "sent.tar.gz"):
        said = CliRunner().invoke(diagnose, [path], standalone_mode=False)
        firsts.append(said.stdout.splitlines()[0])
    assert firsts[0] == firsts[1]
    assert firsts[0].startswith(
        "STALLED  rank 1 is in its own code at main (train.py:21) and has not reached all_reduce"
    )


def test_a_folder_of_somebody_else_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "secret.txt").write_text("x")
    with pytest.raises(NotEvidence, match="no report and no bundle"):
        pack_to(tmp_path / "mine", tmp_path / "out.tar.gz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("HF_TOKEN=abcd1234", "abcd1234"),
        ('{"api_key": "s3cr3t99"}', "s3cr3t99"),
        ("--wandb-api-key 0123456789 --lr 1", "0123456789"),
        ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
        ("s3://me:pass@host/bucket", "pass"),
        ("password: hunter22", "hunter22"),
    ],
)
def test_secrets_in_text(text: str, hidden: str) -> None:
    assert hidden not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second: 512.5",
        "loading tokenizer=gpt2-large",
        "TOKENIZERS_PARALLELISM=false",
        "step 12 loss 0.123",
        "key not set: k3",
        "num_tokens=8192",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text
