"""Waits that all ranks share, outside of the calls that are recorded: for files, for Ray, in calls of which no record is kept."""

from __future__ import annotations

from collections.abc import Callable

from unhang.analyze.activity import RESULT_OF_RAY, Activity
from unhang.analyze.actors import polls_ray
from unhang.analyze.polling import meets_by_files
from unhang.analyze.situation import Situation


def all_meet_by_files(s: Situation) -> bool:
    """Whether every rank looks, again and again, for the files of the others, and has left its own."""
    polled = {r: a.frame for r, a in s.activities.items() if a.is_polled}
    return polled.keys() == set(s.case.world) and all(
        f is not None and meets_by_files(f.file, f.line) for f in polled.values()
    )


def all_wait_for_ray(s: Situation) -> set[int]:
    """All ranks, if each waits for a result of Ray, or asks Ray again and again for another answer, and no call of a group is under way."""
    return _all_ranks(s, lambda a: a.awaits == RESULT_OF_RAY or _polls_ray(a))


def all_in_unknown_calls(s: Situation) -> set[int]:
    """All ranks, if each stands in a call with others by its stack, and no recorder knows these calls.

    torch 2.4 to 2.7 keep none of gloo's; and a call of NCCL is recorded when the communicator that it needs has been made.
    """
    found = _all_ranks(s, lambda a: a.kind == "communication")
    return found if len(found) > 1 else set()


def _polls_ray(activity: Activity) -> bool:
    return activity.is_polled and activity.frame is not None and polls_ray(activity.frame)


def _all_ranks(s: Situation, does: Callable[[Activity], bool]) -> set[int]:
    found = {r for r, a in s.activities.items() if does(a)} if set(s.case.in_sight) == set(s.case.world) else set()
    return found if found == set(s.case.world) and not s.index.groups_with_open_calls() else set()
