"""Starts a launcher on each host; what a case of rendezvous-incomplete reads."""

from subprocess import Popen
from uuid import uuid4


def start(host: str) -> int:
    job_id = f"job-{uuid4()}"
    return Popen(
        ["ssh", host, "torchrun", "--rdzv-id", job_id, "train.py"],
    ).wait()
