"""`unhang mcp`: the tools for agents, over stdin and stdout."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from unhang.cli.run import seconds
from unhang.errors import UnhangError


class NoSdk(UnhangError):
    """The SDK is not installed, or too old."""

    help_text = "pip install 'unhang[mcp]'"


@click.command("mcp")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    show_default="this folder",
    help="Only files below this folder are read.",
)
@click.option(
    "--time-limit", type=seconds, default=120.0, metavar="SECONDS", help="How long one call of a tool may take [120]."
)
@click.option(
    "--most-characters",
    type=click.IntRange(500, 200_000),
    metavar="N",
    default=8000,
    show_default=True,
    help="The length limit of one answer.",
)
def command(root: Path, time_limit: float, most_characters: int) -> int:
    """Serve commands to agents as tools (MCP).

    The tools are diagnose, attach, explain, check, verify and lint, over stdin and stdout.

    The agent's program starts it, and ends it by closing stdin. An agent can read nothing outside --root, run no command
    and end no process.
    """
    if find_spec("mcp") is None or find_spec("mcp.server.mcpserver") is None:
        raise NoSdk("the SDK of the Model Context Protocol, version 2.1 or newer, is not installed")
    from unhang.mcp_server import serve

    serve(root, time_limit, most_characters)
    return 0
