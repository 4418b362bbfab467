"""The vocabulary: evidence, case, rule, finding, diagnosis. Standard library and numpy only; everything is frozen."""

from unhang.model.calls import CALL_COLUMNS, PROGRESS_COLUMNS, CallState, CollectiveCall, CollectiveTable, TableBuilder
from unhang.model.case import Case, HangObservation, Job
from unhang.model.causes import CAUSES
from unhang.model.course import Course, PassedStall, SlowStep
from unhang.model.events import LogEvent
from unhang.model.evidence import (
    Frame,
    LogLine,
    PendingCall,
    ProcessExit,
    ProcessGroup,
    ProcessState,
    RaisedError,
    RankEvidence,
    RankIdentity,
    Source,
    ThreadStack,
    Unavailable,
    user_frames,
)
from unhang.model.findings import (
    Attempt,
    Diagnosis,
    EvidenceLine,
    Finding,
    Fix,
    Inventory,
    Location,
    NextStep,
    Outcome,
    RuleOutcome,
    Verdict,
)
from unhang.model.joining import different, join
from unhang.model.readings import Reading
from unhang.model.waits import WaitEdge, WaitsFor

__all__ = [
    "CALL_COLUMNS",
    "CAUSES",
    "PROGRESS_COLUMNS",
    "Attempt",
    "CallState",
    "Case",
    "CollectiveCall",
    "CollectiveTable",
    "Course",
    "Diagnosis",
    "EvidenceLine",
    "Finding",
    "Fix",
    "Frame",
    "HangObservation",
    "Inventory",
    "Job",
    "Location",
    "LogEvent",
    "LogLine",
    "NextStep",
    "Outcome",
    "PassedStall",
    "PendingCall",
    "ProcessExit",
    "ProcessGroup",
    "ProcessState",
    "RaisedError",
    "RankEvidence",
    "RankIdentity",
    "Reading",
    "RuleOutcome",
    "SlowStep",
    "Source",
    "TableBuilder",
    "ThreadStack",
    "Unavailable",
    "Verdict",
    "WaitEdge",
    "WaitsFor",
    "different",
    "join",
    "user_frames",
]
