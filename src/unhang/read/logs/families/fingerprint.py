"""TORCH_DISTRIBUTED_DEBUG=DETAIL: collectives compared before they are made."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_PRINT = r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{s}seq>\d+), ?)?OpType=(?P<{s}op>\w+)(?:, ?TensorShape ?=\[(?P<{s}shape>[\d, ]*)\], ?TensorDtypes=(?P<{s}dtype>[\w.]+))?"
_LONG = (
    "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
    "SequenceNumber=3104, OpType=ALLREDUCE, TensorShape=[195812480], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions(dtype=float "
    "(default), device=cuda)), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, "
    "TensorShape=[51123456], TensorDtypes=BFloat16)"
)

PATTERNS = (
    Pattern(
        "fingerprint.mismatch",
        r"Rank (?P<rank>\d+) is running (?:inconsistent )?collective: "
        + _PRINT.format(s="")
        + r"(?:.*? but Rank (?P<other_rank>\d+) is running (?:inconsistent )?collective: "
        + _PRINT.format(s="other_")
        + ")?",
        ("is running collective: CollectiveFingerPrint", "is running inconsistent collective: CollectiveFingerPrint"),
        (
            _LONG,
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
            "CollectiveFingerPrint(OpType=ALLGATHER, TensorShape=[41, 256, 8], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
            "SequenceNumber=7, OpType=BARRIER), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=GATHER)",
        ),
        says="crash",
    ),
    Pattern(
        "fingerprint.short",
        r"^\s*Rank (?P<rank>\d+):\s+(?P<op>[A-Z_]+) +\(SeqNum=(?P<seq>\d+)\)",
        ("(SeqNum=",),
        ("  Rank 0:  BARRIER (SeqNum=31)", "  Rank 8:  GATHER  (SeqNum=0)"),
        ("WorkNCCL(SeqNum=31, OpType=BARRIER)",),
    ),
    Pattern(
        "fingerprint.wrapped",
        r"Rank (?P<rank>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+), ?)?OpType=(?P<op>\w+), ?TensorShape\s*$",
        ("OpType=",),
        ("Rank 0 is running inconsistent collective: CollectiveFingerPrint(OpType=ALLGATHER, TensorShape",),
        ("Rank 0 is running collective: CollectiveFingerPrint(OpType=ALLGATHER, TensorShape=[1], x",),
    ),
    Pattern(
        "fingerprint.wrapped_shape",
        r"^\s*=\[(?P<shape>[\d, ]+)\], TensorDtypes=(?P<dtype>[\w.]+)",
        ("], TensorDtypes=",),
        ("=[41, 256, 8, 8, 8], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default)",),
        ("CollectiveFingerPrint(OpType=ALLGATHER, TensorShape=[1], TensorDtypes=Float",),
    ),
    Pattern(
        "fingerprint.nccl",
        r"Mismatched collective detected, please check your collective calls at and around rank (?P<rank>\d+)",
        ("Mismatched collective detected",),
        (
            "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39. You can "
            "use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs",
        ),
        says="crash",
    ),
)
