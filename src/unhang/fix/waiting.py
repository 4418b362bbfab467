"""A wait for the rank that writes, before the others read: a barrier between the two, where every rank comes to it."""

from __future__ import annotations

import ast

from unhang.analyze.source import surroundings
from unhang.fix.agreed import modules
from unhang.fix.program import NoDiff, Program, Said, called, calls_in
from unhang.model import Finding

WRITERS = ("save", "open", "write_text", "write_bytes", "savez", "save_file", "dump", "makedirs", "mkdir")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def wait_for_the_writer(program: Program, finding: Finding) -> Said:
    """Puts a barrier behind the block in which one rank writes what the finding's line reads.

    Raises:
        NoDiff: no such block stands before the line, or not every rank comes to both.
    """
    line = finding.location.line if finding.location else 0
    for statement in program.statements_at(line):
        for node in (statement, *program.around(statement)):
            if not isinstance(node, ast.stmt) or isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                break
            block = program.block_of(node)
            writers = [s for s in block[: block.index(node)] if isinstance(s, ast.If) and _one_rank_writes(program, s)]
            if writers:
                return _with_a_barrier(program, writers[-1], node)
    raise NoDiff("no line before it shows where the other rank writes the file")


def _one_rank_writes(program: Program, gate: ast.If) -> bool:
    """Whether a block is for one rank alone, writes, and goes on behind it."""
    is_of_rank = any(_asks_for_the_rank(program, s, gate) for s in gate.body[:1])
    leaves = any(isinstance(n, _LEAVES) for s in gate.body for n in ast.walk(s))
    return (
        is_of_rank
        and not gate.orelse
        and not leaves
        and any(called(c) in WRITERS for s in gate.body for c in calls_in(s))
    )


def _asks_for_the_rank(program: Program, inside: ast.stmt, gate: ast.If) -> bool:
    found = (c for c in surroundings(str(program.path), inside.lineno).conditions if c.line == gate.test.lineno)
    return any(c.only_on_rank_zero for c in found)


def _with_a_barrier(program: Program, writer: ast.If, reader: ast.stmt) -> Said:
    for above in program.around(writer):
        if isinstance(above, ast.ExceptHandler | ast.Try | ast.While):
            raise NoDiff("not every rank may reach the line after the one that writes")
    if surroundings(str(program.path), writer.lineno).conditions:
        raise NoDiff("the code that writes is under a condition of its own")
    between = program.block_of(writer)
    start = between.index(writer) + 1
    if any(called(c) == "barrier" for s in between[start : between.index(reader) + 1] for c in calls_in(s)):
        raise NoDiff("a barrier stands between them already")
    _, dist = modules(program)
    program.insert_after(
        writer, f"{program.indent(writer)}{dist}.barrier()  # what one rank writes is there for all{program.newline}"
    )
    return Said("wait for writer", "All ranks wait until the file is written before one of them reads it")
