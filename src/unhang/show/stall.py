"""What is shown of a suspicion while the job still runs: a few lines."""

from __future__ import annotations

from unhang.analyze.activity import Activity
from unhang.analyze.hosts import activity_in
from unhang.model import Case, HangObservation, WaitsFor, user_frames
from unhang.model.rank_sets import name_ranks
from unhang.show.paper import Paper, duration
from unhang.show.wait_graph import wait_graph

_MOST_ROOTS, _MOST_FRAMES = 3, 4
_BUSY_SHARE = 0.05


def render_stall(case: Case, waits: WaitsFor, hang: HangObservation, what_next: str, color: bool = False) -> str:
    """A few lines. `what_next`: what becomes of the job, as the user has asked for it."""
    paper = Paper(color, 100)
    lasted = f" {duration(hang.detected_after_s)}" if hang.detected_after_s is not None else ""
    paper.line((f"STALLED{lasted}:", "warn"), " ", (_stalled(case, waits, hang), "strong"))
    for node in wait_graph(waits).nodes:
        for wait in node.waits[:1]:
            paper.line(f"{name_ranks(node.ranks)} in {wait.what}", indent=2)
    for rank in waits.roots[:_MOST_ROOTS]:
        if stack := _one_line_stack(case, rank):
            paper.line(f"rank {rank} in {stack}", indent=2)
    paper.prose(f"Suspected, not proven. {what_next}", style="dim")
    return str(paper)


def _stalled(case: Case, waits: WaitsFor, hang: HangObservation) -> str:
    waiting = tuple(sorted({edge.waiter for edge in waits.edges}))
    if not waiting:
        return hang.reason or f"{name_ranks(hang.waiting_ranks)} make no progress"
    verb = "waits" if len(waiting) == 1 else "wait"
    if not waits.roots:
        return f"{name_ranks(waiting)} {verb}: {hang.reason}"
    doing = {_doing(case, rank) for rank in waits.roots}
    what = f" ({doing.pop()})" if len(doing) == 1 else ""
    return f"{name_ranks(waiting)} {verb} for {name_ranks(waits.roots)}{what}"


def _doing(case: Case, rank: int) -> str:
    evidence = case.ranks.get(rank)
    if evidence is None:
        return "not seen from here" if rank in case.out_of_sight else "it has not registered"
    activity = activity_in(case, rank)
    share = evidence.state.cpu_share if evidence.state else None
    return f"{_words(activity, share or 0.0)} {_place(activity)}".strip()


def _words(activity: Activity, cpu_share: float) -> str:
    match activity.kind:
        case "data":
            return "waits for its data"
        case "lock" | "outside":
            return f"waits for {activity.awaits}"
        case "frozen":
            return f"it is {activity.detail}"
        case "shutdown":
            return "at the end of its program"
        case "dead":
            return "it has ended"
        case "unknown":
            return activity.detail
        case _:
            return "busy" if cpu_share >= _BUSY_SHARE else ""


def _place(activity: Activity) -> str:
    frame = activity.frame
    return f"in {frame.function}, {frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame else ""


def _one_line_stack(case: Case, rank: int) -> str:
    evidence = case.ranks.get(rank)
    stack = evidence.main_stack if evidence else None
    return " < ".join(map(str, user_frames(stack.frames)[:_MOST_FRAMES])) if stack else ""
