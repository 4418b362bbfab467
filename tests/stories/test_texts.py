"""The stories as their teams wrote them down: what is pasted is evidence, what is advised is judged, and neither is taken for the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unhang.cli.main import main
from unhang.read.logs.decode import is_document

TEXTS = Path(__file__).with_name("texts")
SETTINGS = {
    "masked_lm": {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_TIMEOUT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"},
    "gan_diffusion": {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_TIMEOUT_MINUTES", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"},
    "async_rl": {"TORCH_NCCL_DEBUG", "NCCL_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_SHOW_CPP_STACKTRACES", "NCCL_ASYNC_ERROR_HANDLING"},
    "reid": {"NCCL_TIMEOUT", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES"},
    "nanochat": {"NCCL_IB_TIMEOUT", "CUDA_MEMORY_FRACTION", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "CUDA_VISIBLE_DEVICES"},
}  # fmt: skip
ADVISED = {
    "masked_lm": {"slow-rate", "expand-vs-repeat", "nccl-timeout", "fewer-workers", "gpu-at-100-percent", "gradient-checkpointing"},
    "gan_diffusion": {"no-parameter-broadcast", "retain-graph", "default-pg-timeout", "dataloader-timeout", "persistent-workers"},
    "async_rl": {"device-id", "more-barriers"},
    "reid": {"device-id", "blocking-wait", "detect-anomaly", "find-unused-parameters", "broadcast-buffers", "bucket-cap-mb", "gradient-as-bucket-view", "skip-the-batch"},
    "nanochat": {"nccl-ib-timeout", "smaller-batch", "kill-by-name", "master-port", "max-split-size-mb"},
}  # fmt: skip
WRONG = {
    "masked_lm": {"NCCL_TIMEOUT does nothing"},
    "gan_diffusion": {"NCCL_BLOCKING_WAIT=1 and NCCL_ASYNC_ERROR_HANDLING=1 exclude each other", "NCCL_TIMEOUT_MINUTES does nothing"},
    "async_rl": {"TORCH_NCCL_DEBUG does nothing", "TORCH_NCCL_TRACE_BUFFER_SIZE=67108864 is 34.9 GB"},
    "reid": {"NCCL_TIMEOUT does nothing"},
    "nanochat": {"NCCL_IB_TIMEOUT=1000 means for ever", "CUDA_MEMORY_FRACTION does nothing", "--master-port=29501: no effect"},
}  # fmt: skip
TOLD = pytest.CaptureFixture[str]


def text_of(name: str) -> str:
    return str(TEXTS / f"{name}.md")


def told(capsys: TOLD, code: int, *words: str) -> dict[str, Any]:
    assert main([*words, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", ["masked_lm", "gan_diffusion"])
def test_what_is_pasted_is_judged_and_nothing_else(name: str, capsys: TOLD) -> None:
    found = told(capsys, 1, "diagnose", text_of(name))
    assert [f["rule"] for f in found["findings"]] == ["timeout-unexplained"]
    assert "rank 1 waited in ALLREDUCE" in found["findings"][0]["title"]


@pytest.mark.parametrize("name", ["async_rl", "reid", "nanochat"])
def test_a_text_of_advice_alone_is_no_evidence(name: str, capsys: TOLD) -> None:
    assert main(["diagnose", text_of(name)]) == 2
    said = capsys.readouterr().err
    assert "no output of a job is pasted into this document" in said
    assert "unhang env" in said


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_text_is_judged(name: str, capsys: TOLD) -> None:
    found = told(capsys, 1, "env", text_of(name))
    titles = [f["title"] for f in found["findings"]]
    assert all(any(title.startswith(wrong) for title in titles) for wrong in WRONG[name]), titles
    shown = told(capsys, 0, "explain", text_of(name))
    assert {v["variable"].partition("=")[0] for v in shown["variables"]} == SETTINGS[name]


@pytest.mark.parametrize("name", ADVISED)
def test_the_advice_of_a_text_is_told_with_its_truth(name: str, capsys: TOLD) -> None:
    found = {a["advice"]: a for a in told(capsys, 0, "explain", text_of(name))["advice"]}
    assert ADVISED[name] <= found.keys()
    assert all(a["lines"] and a["truth"].endswith(".") for a in found.values())


def test_commands_of_two_fences_are_alternatives(capsys: TOLD) -> None:
    """Four devices in one command and eight ranks in another contradict each other in no job."""
    found = told(capsys, 1, "env", text_of("nanochat"))
    assert not any("CUDA_VISIBLE_DEVICES" in f["title"] for f in found["findings"])


@pytest.mark.parametrize(
    "text",
    [
        "# of samples: 4\nstep 1\n```\nhello\n```\nRuntimeError: Address already in use\n",
        "## Epoch 1\nstep 1 loss 0.2\n## Epoch 2\nstep 2 loss 0.1\n",
        "epoch 0\n# A poem\n## by the model\n```\nroses\n```\nTraceback (most recent call last):\n",
        "#!/bin/bash\n# run\n## the job\ntorchrun train.py\n",
        "",
    ],
)
def test_a_log_with_marks_of_markdown_stays_a_log(text: str) -> None:
    assert not is_document(text.splitlines(), "job.log")


def test_lines_that_only_a_program_prints_count_outside_of_fences(tmp_path: Path, capsys: TOLD) -> None:
    """An issue whose author forgot the fence."""
    path = tmp_path / "issue.md"
    path.write_text(
        "# It hangs\n\n## Log\n\nIf you see CUDA out of memory, use a smaller batch.\n\n"
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/app/train.py", line 41, in collate\n'
        "[rank2]:     raise ValueError()\n[rank2]: ValueError: empty batch\n"
    )
    found = told(capsys, 1, "diagnose", str(path))
    assert [(f["rule"], f["culprit_ranks"]) for f in found["findings"]] == [("user-exception", [2])]
