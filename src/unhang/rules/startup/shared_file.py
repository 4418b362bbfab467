"""Rule: several nodes or ranks write, rename or delete the same files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.read.traceback_text import START as TRACEBACK
from unhang.rules.examples import log_case
from unhang.rules.failure import first_exception, is_file_race
from unhang.rules.startup.start_rule import BESIDE_ANOTHER_ERROR, StartRule, has_other_error, seen

_LATER_NODE = re.compile(r"worker[-_]?0*[1-9]\d*$|(?:^|\D)0*(?:[2-9]|[1-9]\d+)$", re.IGNORECASE)
_RENAME = "FileNotFoundError: [Errno 2] No such file or directory: '/run/tmp.pth.tar' -> '/run/last.pth.tar'"
_INDEX = "FileNotFoundError: [Errno 2] No such file or directory: '/data/index-cache/43d5bc14_doc_idx.npy'"
_ROTATING = "Deleting older checkpoint [/shared/out/checkpoint-9] due to args.save_total_limit"


class SharedFile(StartRule):
    """Ranks of several nodes race for a file: one renames or deletes what another is about to use, or has not written it yet.

    What it detects:
        A rename whose source is gone, an index that one rank builds missing on others, a stale NFS handle, the same checkpoint deleted
        twice, or index building that fails on ranks other than the first node's.

    Why it hangs:
        The rank that loses the race raises; the others wait for it in the next collective.

    How to confirm:
        Which ranks write the path (global rank 0, or local rank 0 of every node), and whether it is on a shared file system.

    How to fix:
        On a shared file system global rank 0 alone writes, on local disks local rank 0 of each node; a barrier of all ranks stands
        between writing and reading; temporary names carry the rank.

    Sources:
        rename(2); nfs(5), ESTALE.
    """

    id = "shared-file"
    cause = "filesystem-race"
    kinds = (
        "files.rename_lost",
        "files.index_missing",
        "files.stale_handle",
        "files.lock_lost",
        "files.extension",
        "files.exists",
    )
    confidence = 0.95
    EXAMPLES: ClassVar = (
        Fires(log_case(_RENAME), ()),
        Fires(log_case(f"[rank0]: Traceback (most recent call last):\n[rank0]: {_RENAME}"), (0,)),
        Fires(log_case(f"c000001: {_INDEX}"), ()),
        Fires(
            log_case(
                f"{_ROTATING}\n{_ROTATING}\nFileNotFoundError: [Errno 2] No such file or directory: '/shared/out/checkpoint-9/optimizer.pt'"
            ),
            (),
        ),
        Quiet(log_case("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'"), "a wrong path"),
        Quiet(log_case(f"{_ROTATING}\nstep 20 loss 1.2"), "a rotation that went well"),
    )
    headline = "ranks race for a file that another one writes, renames or deletes"
    fixes = (
        Fix(
            "One writer, and a barrier before the readers",
            patch="if dist.get_rank() == 0:   # local rank 0 if the path is on each node's own disk\n    write(path)\ndist.barrier()\nread(path)",
            verify="unhang run -- <the same command>, on all nodes",
            undo="revert the edit",
        ),
        Fix(
            "Temporary names that cannot meet",
            patch='temporary = f"{path}.{rank}.{os.getpid()}.tmp"   # then os.replace(temporary, path)',
            verify="no two ranks print the same temporary name",
            undo="revert the edit",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lost races; else a double rotation; else index building that failed on later nodes only.

        Where the exception itself shows the race, the rule filesystem-race says so, with the rank and the line.
        """
        first = first_exception(s)
        if first is not None and is_file_race(s, first):
            return ()
        lost = seen(s, *self.kinds) or (s.events.of("files.shards_missing") if s.is_crash else ())
        return lost or _deleted_twice(s) or _ends_in_a_rotation(s) or _index_on_other_nodes(s)

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks whose exception it is."""
        return tuple(sorted({e.rank for e in events if e.rank is not None and e.kind in self.kinds}))

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """By what was lost; an existing folder alone is often a plain mistake."""
        if has_other_error(s):
            return BESIDE_ANOTHER_ERROR
        kinds = {e.kind for e in events}
        if kinds & {"files.rename_lost", "files.index_missing"}:
            return self.confidence
        if kinds == {"files.rotating"}:
            return BESIDE_ANOTHER_ERROR
        if kinds & {"files.rotating", "files.stale_handle", "files.lock_lost", "files.extension"}:
            return 0.85
        return 0.7 if "files.exists" in kinds else BESIDE_ANOTHER_ERROR + 0.05

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the path."""
        path = next((e["path"] or e["locked"] for e in events if e["path"] or e["locked"]), "")
        kinds = {e.kind for e in events}
        if not path:
            return (
                "the data index is built by one rank, and missing on others"
                if "files.index_frame" in kinds
                else self.headline
            )
        if "files.rename_lost" in kinds:
            return f"{path} was renamed or filled by another rank first"
        if "files.index_missing" in kinds:
            return f"{path} is not there (yet) on some ranks: another rank builds it"
        return f"several ranks work on {path} at once"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is a race."""
        return (
            "The path is made by one process and used by others, and nothing orders the two: on a shared file system two nodes do the "
            "same step, on local disks only one node has the file. It may vanish after a retry; a longer timeout of the collectives does not mend it."
        )


def _deleted_twice(s: Situation) -> Sequence[LogEvent]:
    rotated = s.events.of("files.rotating")
    twice = {path for path, times in Counter(e["path"] for e in rotated).items() if times > 1}
    gone = [e for e in seen(s, "files.gone_while_deleting") if any(e["path"].startswith(path) for path in twice)]
    return [*(e for e in rotated if e["path"] in twice), *gone] if gone else ()


def _ends_in_a_rotation(s: Situation) -> Sequence[LogEvent]:
    """A traceback, of which the log holds only the head, right after a checkpoint was to be deleted."""
    if first_exception(s) is not None:
        return ()
    texts = [line.text.strip() for line in s.case.log]
    return [e for e in s.events.of("files.rotating") if texts[e.order + 1 : e.order + 3] == [TRACEBACK]]


def _index_on_other_nodes(s: Situation) -> Sequence[LogEvent]:
    """Traceback lines of the index builder on ranks or nodes that are told, the first not among them, with no other error told."""
    frames = s.events.of("files.index_frame")
    others_failed = any(error.message for error in s.case.loose_errors) or any(f.error for f in s.failures)
    return frames if frames and not others_failed and all(_is_later(e) for e in frames) else ()


def _is_later(event: LogEvent) -> bool:
    """Whether a line is of a rank or a node that is not the first one."""
    return event.rank > 0 if event.rank is not None else _LATER_NODE.search(event.host) is not None
