from __future__ import annotations

import pytest

from unhang.read.environment import REDACTED, redact_command, stored_environment


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "--token", "abc", "--lr", "1"], ["train.py", "--token", REDACTED, "--lr", "1"]),
        (["--api-key=abc", "--epochs=3"], [f"--api-key={REDACTED}", "--epochs=3"]),
        (["--wandb_api_key", "abc"], ["--wandb_api_key", REDACTED]),
        (["--password", "--verbose"], ["--password", "--verbose"]),
        (["HF_TOKEN=abc", "python"], [f"HF_TOKEN={REDACTED}", "python"]),
        (["s3://me:pass@host/data"], [f"s3://{REDACTED}@host/data"]),
        (["--hub", "hf_abcdefghijklmnop"], ["--hub", REDACTED]),
        (["--tokenizer", "gpt2", "--max-tokens", "5", "--key-size", "8"], None),
        (["tcp://host:29500", "--keyboard", "x", "monkey"], None),
    ],
)
def test_the_command_line_loses_its_secrets(command: list[str], expected: list[str] | None) -> None:
    assert redact_command(command) == (expected or command)


def test_only_known_variables_are_stored() -> None:
    env = {
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "RANK": "3",
        "LOCAL_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "OMP_NUM_THREADS": "1",
        "NCCL_SOCKET_IFNAME": "http://me:pass@host",
    }
    secrets = {
        "HF_TOKEN": "x",
        "TORCH_API_TOKEN": "x",
        "NCCL_SECRET": "x",
        "CUDA_PASSWORD": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "WANDB_API_KEY": "x",
        "TORCH_CREDENTIALS": "x",
        "HOME": "/root",
        "FRANK": "x",
    }
    stored = stored_environment({**env, **secrets})
    assert stored == {**env, "NCCL_SOCKET_IFNAME": f"http://{REDACTED}@host"}
