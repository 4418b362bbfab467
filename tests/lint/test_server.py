"""`unhang lint --lsp`, asked by a client over stdin and stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

BROKEN = "import torch.distributed as dist\n\n\ndef f(rank):\n    if rank == 0:\n        dist.barrier()\n"


def send(server: subprocess.Popen[bytes], method: str, number: int | None = None, **params: Any) -> None:
    message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    body = json.dumps(message).encode()
    assert server.stdin is not None
    server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    server.stdin.flush()


def receive(out: IO[bytes] | None) -> dict[str, Any]:
    assert out is not None
    length = int(out.readline().partition(b":")[2])
    assert out.readline() == b"\r\n"
    message = json.loads(out.read(length))
    assert isinstance(message, dict)
    return message


def test_a_client_sees_findings_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "train it.py"
    path.write_text(BROKEN)
    command = [sys.executable, "-m", "unhang", "lint", "--lsp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as server:
        send(server, "initialize", 1, rootUri=tmp_path.as_uri(), capabilities={})
        assert receive(server.stdout)["result"]["capabilities"]["textDocumentSync"]["save"]
        send(server, "initialized")
        told = receive(server.stdout)
        assert (told["method"], told["params"]["uri"]) == ("textDocument/publishDiagnostics", path.as_uri())
        (one,) = told["params"]["diagnostics"]
        assert (one["code"], one["range"]["start"]) == ("LNT101", {"line": 5, "character": 8})
        assert one["relatedInformation"][0]["message"] == "the condition `rank == 0` depends on the rank"
        send(server, "textDocument/hover", 2)
        assert receive(server.stdout)["error"]["code"] == -32601
        path.write_text(BROKEN.replace("    if rank == 0:\n    ", ""))
        send(server, "textDocument/didSave", textDocument={"uri": path.as_uri()})
        assert receive(server.stdout)["params"] == {"uri": path.as_uri(), "diagnostics": []}
        send(server, "shutdown", 3)
        assert receive(server.stdout)["result"] is None
        send(server, "exit")
        assert server.wait(30) == 0
