"""`unhang lint --lsp`: a language server over stdin and stdout. A folder is judged as a whole, as it stands on disk: when it is opened, and when a file of it is saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from unhang import __version__
from unhang.errors import UnhangError
from unhang.lint.cards import LintSettings, all_cards
from unhang.lint.checking import Cache, lint_paths
from unhang.lint.ir import Found

_MOST = 10_000_000  # bytes of one message
_CAN = {"textDocumentSync": {"openClose": True, "change": 0, "save": {"includeText": False}}}


class Server:
    """One client. `settings`: those of a folder; `told`: files for which the client shows something."""

    def __init__(self, out: BinaryIO, settings: Callable[[Path], LintSettings]) -> None:
        self._out, self._settings = out, settings
        self._root: Path | None = None
        self._told: set[str] = set()
        self._ends = False

    def run(self, given: BinaryIO) -> int:
        """Blocks: until the client says `exit` or closes the pipe. The exit code is 1 if it was not told to shut down before."""
        while (message := _read(given)) is not None:
            method = message.get("method")
            if method == "exit":
                break
            result: Any = None
            if method == "initialize":
                self._root = _root_of(message.get("params") or {})
                result = {"capabilities": _CAN, "serverInfo": {"name": "unhang", "version": __version__}}
            elif method == "shutdown":
                self._ends = True
            elif method in ("initialized", "textDocument/didSave"):
                self._judge()
            if "id" in message and method:
                known = method in ("initialize", "shutdown")
                self._send({"id": message["id"], "result": result} if known else _unknown(message["id"], method))
        return 0 if self._ends else 1

    def _judge(self) -> None:
        if self._root is None:
            return
        try:
            found = lint_paths([str(self._root)], self._settings(self._root), Cache()).found
        except UnhangError as error:
            self._send({"method": "window/showMessage", "params": {"type": 2, "message": f"unhang: {error}"}})
            return
        by_file: dict[str, list[dict[str, Any]]] = {path: [] for path in self._told}
        for path, one in found:
            by_file.setdefault(path, []).append(_diagnostic(one))
        for path, shown in sorted(by_file.items()):
            params = {"uri": Path(path).as_uri(), "diagnostics": shown}
            self._send({"method": "textDocument/publishDiagnostics", "params": params})
        self._told = {path for path, shown in by_file.items() if shown}

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._out.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._out.flush()


def _diagnostic(one: Found) -> dict[str, Any]:
    card = all_cards()[one.code]
    at = {"line": one.line - 1, "character": one.column - 1}
    end = {"line": one.line, "character": 0}
    way = [
        {"location": {"uri": Path(p).absolute().as_uri(), "range": _line(n)}, "message": text} for p, n, text in one.way
    ]
    message = f"{card.title_of(one)}\ndo: {card.todo_of(one)}"
    return {
        "range": {"start": at, "end": end}, "severity": 2, "code": one.code, "source": "unhang", "message": message,
        "relatedInformation": way,
    }  # fmt: skip


def _line(number: int) -> dict[str, Any]:
    return {"start": {"line": number - 1, "character": 0}, "end": {"line": number, "character": 0}}


def _root_of(params: dict[str, Any]) -> Path | None:
    folders = params.get("workspaceFolders") or []
    uri = folders[0]["uri"] if folders else params.get("rootUri")
    return Path(unquote(urlsplit(uri).path)) if uri else None


def _unknown(number: Any, method: str) -> dict[str, Any]:
    return {"id": number, "error": {"code": -32601, "message": f"unhang does not know {method}"}}


def _read(given: BinaryIO) -> dict[str, Any] | None:
    """The next message; None: there is none any more, or none that can be read."""
    length = 0
    while (line := given.readline(1000)).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value) if value.strip().isdigit() else 0
    if not line or not 0 < length <= _MOST:
        return None
    try:
        message = json.loads(given.read(length))
    except ValueError:
        return None
    return message if isinstance(message, dict) else {}
