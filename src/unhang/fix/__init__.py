"""Fixes as diffs: what a finding says is wrong, mended in the program's own text. Sure ones only; else the reason why there is none.

Which change mends which finding, in which file; and the diff of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from unhang.analyze.program.rank_names import asks_for_the_rank
from unhang.analyze.program.source import Condition, surroundings
from unhang.analyze.program.trees import last_name
from unhang.fix.agreed import agree_on, answer_alike, is_collective, modules, order_alike, root_alike
from unhang.fix.alike import moved_up, one_mask, one_score, skip_the_step
from unhang.fix.hoist import hoist
from unhang.fix.program import LEAVES, Function, NoDiff, Program, Said, called, calls_in, dotted, holds, unified
from unhang.fix.rounds import AT_THE_FIRST, after_the_round, even_rounds, same_rounds
from unhang.fix.single import (
    find_unused,
    gather_objects,
    make_folder,
    raise_again,
    send_without_waiting,
    set_always,
    skip_together,
    wait_for_thread,
)
from unhang.fix.whole_rounds import last_alike
from unhang.lint import known
from unhang.model import Diagnosis, Finding, Fix
from unhang.model.findings import EARLIER, LIMIT, LOSS, SOURCE, limits_last

# A wait for the rank that writes, before the others read: a barrier between the two, where every rank comes to it.

WRITERS = ("save", "open", "write_text", "write_bytes", "savez", "save_file", "dump", "makedirs", "mkdir")


def wait_for_the_writer(program: Program, finding: Finding) -> Said:
    """Puts a barrier behind the block in which one rank writes what the finding's line reads.

    Raises:
        NoDiff: no such block stands before the line, or not every rank comes to both.
    """
    line = finding.line
    for statement in program.statements_at(line):
        for node in (statement, *program.around(statement)):
            if not isinstance(node, ast.stmt) or isinstance(node, Function | ast.ClassDef):
                break
            block = program.block_of(node)
            writers = [s for s in block[: block.index(node)] if isinstance(s, ast.If) and _one_rank_writes(program, s)]
            if writers:
                return _with_a_barrier(program, writers[-1], node)
    raise NoDiff("no line before it shows where the other rank writes the file")


def _one_rank_writes(program: Program, gate: ast.If) -> bool:
    """Whether a block is for one rank alone, writes, and goes on behind it."""
    around = surroundings(str(program.path), gate.body[0].lineno).conditions
    is_of_rank = any(c.only_on_rank_zero for c in around if c.line == gate.test.lineno)
    writes = any(called(c) in WRITERS for s in gate.body for c in calls_in(s))
    return is_of_rank and writes and not gate.orelse and not holds(gate.body, LEAVES | ast.Raise)


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
    barrier = f"{dist}.barrier()  # what one rank writes is there for all"
    program.insert_after(writer, f"{program.indent(writer)}{barrier}{program.newline}")
    return Said("wait for writer", "All ranks wait until the file is written before one of them reads it")


_WRAPPERS = ("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "prepare")
_WHY_NOT = {
    "code-divergence": "the report names no condition that decides who makes the call",
    "rank-stuck-in-user-code": "what the rank should do instead of waiting there is yours to decide",
    "dataloader-hang": "the loader waits for something outside this code; see what to do in the report",
    "slow-rank0-work": "the work is not wrong, only long: do it before the job, or give the group a longer timeout",
    "rank-frozen": "nothing in the code stopped the process",
    "user-exception": "what the code should do with this input is yours to decide",
    "gpu-oom": "what should take less memory is yours to decide",
    "size-mismatch": "which size is the right one is yours to decide",
    "shutdown-hang": "which thread or process should end, and when, is yours to decide",
    "straggler": "a slow rank is no fault of a line",
}


@dataclass(frozen=True)
class Mended:
    """A change of one file. `says`: what it does; `name`: the file as the diff names it; `root`: the folder that this is seen from."""

    path: Path
    root: Path
    name: str
    before: bytes
    after: bytes
    says: Said

    @property
    def diff(self) -> str:
        """The change, for `git apply` and `patch -p1` in `root`."""
        return unified(self.name, self.before, self.after)


def mend(finding: Finding, backend: str, find_file: Callable[[str], Path] = Path) -> Mended:
    """The change that mends a finding. `find_file`: where a file of the job lies here.

    Raises:
        NoDiff: there is none that is sure.
    """
    change = _change(finding)
    if finding.location is None:
        raise NoDiff("the report names no line")
    gate = finding.condition if change is _agree else None
    program = Program(find_file(gate.file if gate is not None else finding.location.file))
    says = change(program, finding, backend)
    after = program.result()
    root = _root(program.path)
    name = program.path.resolve().relative_to(root).as_posix()
    return Mended(program.path, root, name, program.data, after, says)


Change = Callable[[Program, Finding, str], Said]


def _change(finding: Finding) -> Change:
    match finding.cause, finding.rule:
        case "code-divergence", "swallowed-exception":
            return _of_handler(finding)
        case "uneven-inputs", "uneven-inputs":
            if any(e.source == SOURCE for e in finding.evidence):
                raise NoDiff("what the loop goes over has to change: see what to do in the report")
            return even_rounds
        case "code-divergence" | "rank-exited-early", "uneven-inputs":
            _refuse_what_no_diff_does(finding)
            return same_rounds
        case _, "subgroup-not-created-by-all" if finding.condition and not asks_for_the_rank(finding.condition):
            raise NoDiff("every rank has to make the group, also one that does not come there: make it at the start")
        case "code-divergence", "waits-for-store" if finding.condition is None:
            return lambda program, f, _: set_always(program, f)
        case "code-divergence", _ if _is_in_signal_handler(finding):
            return after_the_round
        case "code-divergence", "rank-dependent-collective" if finding.condition is None:
            return answer_alike
        case "rank-exited-early", "rank-exited-early" if finding.condition and _is_to_end_together(finding):
            return partial(_agree, to_end=True)
        case "user-exception", "user-exception" if finding.condition:
            return _leave_out
        case "filesystem-race", _ if finding.fixes and not finding.fixes[0].does:
            raise NoDiff("more than one line has to change: see what to do in the report")
        case "unused-parameters", _:
            return lambda program, f, _: find_unused(program, f)
        case "collective-order-race", _:
            return _one_order
        case "filesystem-race", _:
            return lambda program, f, _: _in_order(program, f)
        case "size-mismatch", _:
            return gather_objects
        case _, "roots-disagree":
            return root_alike
    if finding.condition is None:
        raise NoDiff(_WHY_NOT.get(finding.cause, "it is no fault of a line of code"))
    if finding.condition.only_zero or finding.condition.by_rank:
        return _hoist
    _refuse_what_no_diff_does(finding)
    return _agree


def _refuse_what_no_diff_does(finding: Finding) -> None:
    if finding.fixes and not any(f.does or f.patch for f in finding.fixes):
        raise NoDiff("more than the condition has to change: see what to do in the report")


def _of_handler(finding: Finding) -> Change:
    if finding.condition is not None:
        return _agree
    if not finding.fixes or finding.fixes[0].does == "raise again":
        return lambda program, f, _: raise_again(program, f)
    if finding.fixes[0].does == "skip together":
        return skip_together
    raise NoDiff("the exception is to be handled at another line: see what to do in the report")


def _is_in_signal_handler(finding: Finding) -> bool:
    return any(e.source.endswith("signal") and "in the handler of" in e.text for e in finding.evidence)


def _in_order(program: Program, finding: Finding) -> Said:
    """What one rank writes and another reads."""
    try:
        return wait_for_the_writer(program, finding)
    except NoDiff:
        return make_folder(program, finding)


def _one_order(program: Program, finding: Finding, backend: str) -> Said:
    is_of_thread = any("thread python" in e.text for e in finding.evidence if e.source.endswith("calls"))
    if is_of_thread:
        return wait_for_thread(program, finding)
    return order_alike(program, finding, backend) if is_collective(finding) else send_without_waiting(program, finding)


def _agree(program: Program, finding: Finding, backend: str, to_end: bool = False) -> Said:
    gate = finding.condition
    assert gate is not None
    for change in (skip_the_step,) if to_end else (moved_up, one_mask, one_score, last_alike):
        if (says := change(program, gate, finding, backend)) is not None:
            return says
    return agree_on(program, gate, finding, backend, to_end)


def _leave_out(program: Program, finding: Finding, backend: str) -> Said:
    assert finding.condition is not None
    if (says := skip_the_step(program, finding.condition, finding, backend)) is None:
        raise NoDiff(_WHY_NOT["user-exception"])
    return says


def _is_to_end_together(finding: Finding) -> bool:
    return any(fix.does == "decide together" for fix in finding.fixes)


def _hoist(program: Program, finding: Finding, backend: str) -> Said:
    gate, place = finding.condition, finding.location
    assert gate is not None
    assert place is not None
    if (finding.collective or {}).get("op") in ("send", "recv"):
        raise NoDiff("the ranks send to each other there: which side should change is yours to decide")
    found = surroundings(str(program.path), place.line).conditions
    near = next((c for c in found if c.line == gate.line), None)
    if near is None:
        raise NoDiff(f"line {gate.line} has another condition now")
    functions = {e.text.rpartition(" in ")[2] for e in finding.evidence if e.source.endswith("stack")}
    steps = (s for e in finding.evidence if e.source.endswith("calls") for s in e.text.split(" > "))
    functions |= {step.partition(":")[0].split()[-1] for step in steps}
    words = known.WORDS - {"log", "setup", "register", "signal", "finalize", "Thread"}
    makers = words | _wrapped(program.tree) | functions
    return hoist(program, place.line, gate.line, makers.__contains__, lambda test: _is_rank(near, test))


def _is_rank(near: Condition, test: ast.expr) -> bool:
    """Whether a part of the condition asks for the rank."""
    if isinstance(test, ast.BoolOp):
        return any(_is_rank(near, v) for v in test.values)
    return replace(near, test=test, text=ast.unparse(test), line=near.line).depends_on_rank


def _wrapped(tree: ast.AST) -> set[str]:
    """Names of what is wrapped for distributed training: a call of it is a forward that all ranks make."""
    found = set()
    for node in ast.walk(tree):
        made = [c for c in ast.walk(node.value) if isinstance(c, ast.Call)] if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Assign) and any(dotted(c.func).rpartition(".")[2] in _WRAPPERS for c in made):
            named = (n for t in node.targets for n in ast.walk(t))
            found |= {last_name(n) for n in named if isinstance(n, ast.Name | ast.Attribute)}
    return found


def _root(path: Path) -> Path:
    """The working tree that a file lies in; else the folder one is in, else its own."""
    whole = path.resolve()
    for folder in whole.parents:
        if (folder / ".git").exists():
            return folder
    here = Path.cwd()
    return here if whole.is_relative_to(here) else whole.parent


def with_diff(diagnosis: Diagnosis) -> Diagnosis:
    """The same with the diff that mends the first finding, in front of its other fixes, where there is a sure one."""
    if not diagnosis.findings or any(f.patch for f in diagnosis.findings[0].fixes):
        return diagnosis
    first = diagnosis.findings[0]
    try:
        mended = mend(first, diagnosis.job.backend)
        if _is_newer(mended.path, diagnosis.job.started_ns):
            return diagnosis
    except Exception:  # noqa: BLE001  a program that nobody foresaw must not cost the verdict
        return diagnosis
    fix = Fix(
        mended.says.text,
        does=mended.says.does,
        verify="unhang verify --before <this report> --after -- <the same command>",
        patch=mended.diff,
        undo="git apply -R fix.patch, which `unhang fix --apply` leaves beside the report",
        kind=_kind_of(mended.says, first),
    )
    others = [other for other in first.fixes if other.does != fix.does]  # nor the same in words
    return replace(diagnosis, findings=(replace(first, fixes=limits_last((fix, *others))), *diagnosis.findings[1:]))


def _kind_of(says: Said, finding: Finding) -> str:
    """Whether a change mends, or only ends the hang: by an error, or by leaving out what some ranks still had."""
    if says.does == "raise again":
        return LIMIT
    is_gathered = "gather" in str((finding.collective or {}).get("op", ""))  # what the others still have is a result
    is_cut = says.text == AT_THE_FIRST and (is_gathered or any(e.source == EARLIER for e in finding.evidence))
    return LOSS if is_cut else ""


def _is_newer(path: Path, started_ns: int) -> bool:
    """Whether a file holds another text than that which ran."""
    return path.stat().st_mtime_ns > started_ns > 0
