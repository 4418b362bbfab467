import json
import time
import uuid
from pathlib import Path


def ask_pause(root, step):
    folder = Path(root) / f"pause_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    ticket = uuid.uuid4().hex
    (folder / "request.json").write_text(json.dumps({"step": step, "ticket": ticket}))
    return ticket


def wait_paused(root, step, ticket, limit=300.0):
    marker = Path(root) / f"pause_{step}" / f"paused_{ticket}"
    end = time.monotonic() + limit
    while not marker.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"inference did not pause for step {step}")
        time.sleep(0.5)


def give_release(root, step, ticket):
    (Path(root) / f"pause_{step}" / f"release_{ticket}").touch()
