"""`unhang completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_UNHANG_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script for your shell.

    bash: add to ~/.bashrc: eval "$(unhang completion bash)"

    zsh: add to ~/.zshrc: eval "$(unhang completion zsh)"

    fish: unhang completion fish > ~/.config/fish/completions/unhang.fish
    """
    from click.shell_completion import get_completion_class

    from unhang.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(cli, {}, "unhang", VARIABLE)
    click.echo(maker.source_template % maker.source_vars(), nl=False)
    return 0
