"""`unhang explain`: a rule, a cause, a variable, a line of a log, a file; without argument, the way from symptoms to rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from unhang.cli.console import format_option

FORMATS = ("text", "json")


@click.command("explain")
@click.argument("what", nargs=-1)
@format_option(FORMATS)
def command(what: tuple[str, ...], output_format: str) -> int:
    """Explain a rule, a cause, a variable, or a log.

    WHAT is a rule (gpu-out-of-memory, or LNT101 of 'unhang lint'), a cause (gpu-oom), an environment variable, common advice (expand-vs-repeat), a
    line of a log in quotes, a file (a log or a launch script), or - for text on stdin. Without WHAT, questions lead from what you
    see to the rules that may explain it.
    """
    from unhang.cli.main import COMMANDS
    from unhang.show.explain_text import SCHEMA, tree_json, tree_text
    from unhang.show.paper import fitted
    from unhang.skill.explaining import explained

    word = " ".join(what).strip()
    if word:
        kind, text, fields = explained(word, tuple(COMMANDS))
    elif output_format == "text" and is_interactive():
        return ask(tuple(COMMANDS))
    else:
        kind, text, fields = "tree", tree_text(), tree_json(tuple(COMMANDS))
    if output_format == "json":
        whole = {"schema": SCHEMA, "kind": kind, "what": word or None, **fields}
        text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    click.echo(text if output_format == "json" else fitted(text), nl=False)
    return 0


def is_interactive() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(commands: Sequence[str]) -> int:
    """Walks the tree with a person: a number answers, b goes back, q ends."""
    from unhang.rules.decision_tree import FIRST, QUESTIONS
    from unhang.show.explain_text import leaf_text, question_text
    from unhang.show.paper import fitted

    trail = [FIRST]
    while trail:
        question = QUESTIONS[trail[-1]]
        click.echo(fitted(question_text(question)))
        choice = _choice(len(question.answers), can_go_back=len(trail) > 1)
        if choice == "q":
            return 0
        if choice == "b":
            trail.pop()
            continue
        answer = question.answers[int(choice) - 1]
        if answer.then:
            trail.append(answer.then)
            continue
        click.echo("\n" + fitted(leaf_text(question, answer, commands)))
        if _choice(0, can_go_back=True) == "q":
            return 0
    return 0


def _choice(count: int, can_go_back: bool) -> str:
    """A number up to `count`, b or q; the end of the input is q."""
    choices = [*map(str, range(1, count + 1)), *(["b"] if can_go_back else []), "q"]
    label = f"1-{count}, " if count else ""
    label += ("b = back, " if can_go_back else "") + "q = quit"
    try:
        answer = click.prompt(label, type=click.Choice(choices, case_sensitive=False), show_choices=False)
    except click.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise
        click.echo()
        return "q"
    return str(answer).lower()
