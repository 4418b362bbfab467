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
    # NCCL 2.4: it only suspects so, after a while without progress.
    Pattern(
        "fingerprint.nccl_suspects",
        r"may be hanging, this may be caused by a collective mismatch around rank (?P<around>\d+)",
        ("caused by a collective mismatch around rank",),
        (
            "init.cc:1259 NCCL WARN Your program may be hanging, this may be caused by a collective mismatch around rank 3. Please check "
            "your collective calls at and around this rank.",
        ),
        says="hang",
    ),
    # NCCL_DEBUG_SUBSYS=COLL: every call of every rank, before it is launched.
    Pattern(
        "ncclcall.traced",
        r"(?:\[(?P<device>\d+)\] NCCL INFO )?\b(?P<op>AllReduce|AllGather|Broadcast|Reduce|ReduceScatter|AllToAll): opCount (?P<position>[0-9a-f]+) "
        r"sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (?P<numel>\d+) datatype (?P<dtype>\d+) op \d+ root (?P<root>\d+) comm (?P<comm>\w+) "
        r"\[nranks=(?P<size>\d+)\](?: stream \S+)?(?: task \d+ globalrank (?P<rank>\d+))?",
        (": opCount ",),
        (
            "node-a:45006:45006 [0] NCCL INFO AllReduce: opCount 28c sendbuff 0x7f5dd32b2100 recvbuff 0x7f5dd32b2100 count 9984512 datatype 7 "
            "op 0 root 0 comm 0x55bef0201370 [nranks=4] stream 0x55bef0208bd0",
            "node-a:77:77 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f acc (nil) count 1 datatype 7 op 0 root 0 comm 0x55 "
            "[nranks=2] stream 0x56 task 0 globalrank 1",
        ),
        ("NCCL INFO Send: opCount 12 sendbuff 0x7f505e93c000 recvbuff (nil) count 2420736",),
        is_background=True,
    ),
    # The libraries' own comparisons of the ranks.
    Pattern(
        "compared.forward_order",
        r"Forward order differs across ranks: rank (?P<one>\d+) is all-gathering .{0,2000}? while rank (?P<other>\d+) is all-gathering",
        ("Forward order differs across ranks",),
        (
            "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 1 is all-gathering 0 "
            "parameters",
        ),
        ("UserWarning: Forward order differs across ranks, see above",),
        says="crash",
    ),
    Pattern(
        "compared.fetch_order",
        r"disagreement between rank ?(?P<one>\d+) and rank ?(?P<other>\d+): rank",
        ("disagreement between rank",),
        ("RuntimeError: disagreement between rank0 and rank7: rank0: [2, 3, 4, 6], rank7: [2, 3, 5, 6]",),
        says="crash",
    ),
)
