"""The CollectiveTable of all ranks, one rank after the other, so that only one rank's calls are objects at a time."""

from __future__ import annotations

from pathlib import Path

from unhang.errors import UnreadableInput
from unhang.model import CollectiveTable, RaisedError, TableBuilder, Unavailable
from unhang.read.flight_merge import is_communication_error, mark_failed, unite
from unhang.read.flight_recorder import RecordedCalls, add_calls, decode, lost_entries
from unhang.read.inventory import RankCalls
from unhang.read.membership import Membership
from unhang.read.pickle_guard import PickleGuard
from unhang.read.rank_folder import RankRecord


class FlightTable:
    """Collects the calls of the ranks."""

    def __init__(self, membership: Membership, guard: PickleGuard, trusted: bool = False) -> None:
        self._membership, self._guard, self._trusted = membership, guard, trusted
        self._builder = TableBuilder()
        self.ranks: dict[int, RankCalls] = {}

    def add(self, record: RankRecord, error: RaisedError | None) -> None:
        """Adds the calls of one rank, in which it may have failed with `error`; what is lost is noted in the record."""
        dumps = [d for path in record.dump_paths if (d := self._decoded(record, path)) is not None]
        if not dumps:
            return
        fatal = record.fatal
        failed = fatal is not None or (error is not None and is_communication_error(error))
        calls, contradicting = unite(dumps, distrust_completion=failed)
        mark_failed(calls, error, [t.frames for t in fatal.threads] if fatal else ())
        configured = {name: group for dump in dumps for name, group in dump.groups.items()}
        add_calls(calls, record.rank, self._builder, self._membership.of_rank(record.rank, configured))
        if calls and calls[0].record_id > 0:
            self._builder.mark_wrapped(record.rank)
        if contradicting:
            reason = "another dump of the rank says otherwise: are there dumps of two jobs?"
            record.absent.append(Unavailable(f"{contradicting} calls of rank {record.rank}", reason))
        backend = next((d.backend for d in dumps if d.backend), "")
        self.ranks[record.rank] = RankCalls(len(calls), any(call.frames for call in calls), backend)

    def build(self) -> CollectiveTable:
        """The table of all ranks added."""
        return self._builder.build()

    def _decoded(self, record: RankRecord, path: Path) -> RecordedCalls | None:
        try:
            recorded = RecordedCalls(decode(path, guard=self._guard, trusted=self._trusted), str(path))
        except UnreadableInput as error:
            record.absent.append(Unavailable(f"{path.name} of rank {record.rank}", str(error)))
            return None
        record.absent.extend(lost_entries(recorded, record.rank))
        return recorded
