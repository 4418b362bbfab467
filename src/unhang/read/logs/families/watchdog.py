"""The watchdog and the heartbeat monitor of torch's ProcessGroupNCCL, torch 1.13 to 2.13."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_GROUP = r"\[(?:PG (?:ID )?(?P<pg_id>\d+) (?:PG GUID (?P<guid>\w+))?\s?(?:\((?P<desc>[^)]*)\))? ?)?Rank (?P<group_rank>\d+)\]"
_WORK = (
    r"WorkNCCL\((?:[^)]*?SeqNum=(?P<seq>\d+), )?[^)]*?OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?"
    r"(?:[^()]*\(ms\)=(?P<limit_ms>\d+))?[^)]*\)?(?: ran for (?P<ran_ms>\d+))?"
)
_CAUGHT = "aught collective operation timeout"

PATTERNS = (
    Pattern(
        "watchdog.timeout",
        r"\[Rank (?P<group_rank>\d+)\]:? ?(?:Watchdog c|C)aught collective operation timeout:? *(?:" + _WORK + ")?",
        (_CAUGHT,),
        (
            "[rank1]:[E228 02:40:22.574313089 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) ran for 1800042 "
            "milliseconds before timing out.",
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3742816, "
            "OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1801750 milliseconds before timing out.",
            "[E ProcessGroupNCCL.cpp:587] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
            "TensorShape=[1], Timeout(ms)=1800000) ran for 1808499 milliseconds before timing out.",
            "[Rank 0] Watchdog caught collective operation timeout:",
            "RuntimeError: [Rank 1] Caught collective operation timeout: WorkNCCL(SeqNum=143, OpType=BROADCAST, TensorShape=[1], "
            "Timeout(ms)=3600000) ran for 3600089 milliseconds before timing out.",
        ),
        says="hang",
    ),
    Pattern(
        "watchdog.timeout",
        r"\[Rank (?P<group_rank>\d+)\]:? ?Work " + _WORK + r" timed out in blocking wait",
        ("timed out in blocking wait",),
        (
            "[rank4]:[E601 07:25:57.39 ProcessGroupNCCL.cpp:756] [Rank 4] Work WorkNCCL(SeqNum=201809, OpType=BROADCAST, NumelIn=32, "
            "NumelOut=32, Timeout(ms)=10800000) timed out in blocking wait.",
        ),
        says="hang",
    ),
    Pattern(
        "watchdog.work",
        r"^\s*" + _WORK,
        ("WorkNCCL(",),
        ("  WorkNCCL(..., OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000)",),
        (f"[Rank 0] Watchdog c{_CAUGHT}: WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=10)",),
    ),
    Pattern(
        "watchdog.counters",
        _GROUP
        + r".*(?:Timeout at NCCL work: (?P<seq>\d+)|detected by watchdog at work(?: sequence id)?: (?P<seq_>\d+))"
        r".*?last enqueued(?: NCCL)? work: (?P<enqueued>\d+), last completed(?: NCCL)? work: (?P<completed>-?\d+)",
        ("last enqueued",),
        (
            "[rank4]:[E301 07:53:56.80 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 4] Timeout at NCCL work: 175, "
            "last enqueued NCCL work: 175, last completed NCCL work: 174.",
            "[rank1]:[E210 05:01:14.78 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error "
            "or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.",
            "[rank7]:[E620 05:06:20.62 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 7]  failure detected by "
            "watchdog at work sequence id: 460631 PG status: last enqueued work: 460631, last completed work: 460630",
            "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 1] Timeout at NCCL work: 6075, last enqueued NCCL work: 6139, last "
            "completed NCCL work: 6074.",
        ),
        says="hang",
    ),
    Pattern(
        "watchdog.counters_of",
        r"\[Rank (?P<ranks>\d+(?:[/,]\d+)*)\] Last enqueued NCCL work: (?P<enqueued>\d+)(?:, last completed(?: NCCL work:)? (?P<completed>\d+))?",
        ("Last enqueued NCCL work",),
        (
            "[Rank 1] Last enqueued NCCL work: 21936, last completed 21936",
            "[Rank 0/2/3] Last enqueued NCCL work: 21937, last completed 21936",
            "[Rank 3] Last enqueued NCCL work: 41, last completed NCCL work: 40.",
        ),
    ),
    Pattern(
        "watchdog.taken_down",
        r"Some NCCL operations have failed or timed out",
        ("Some NCCL operations have failed or timed out",),
        (
            "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        ),
        says="hang",
    ),
    Pattern(
        "watchdog.stuck",
        r"watchdog got stuck for (?P<seconds>\d+) ?seconds|Heartbeat monitor timed out!(?:.*workMetaList_\.size\(\)=(?P<queued>\d+))?",
        ("watchdog got stuck for", "Heartbeat monitor timed out"),
        (
            "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] [PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 600 seconds "
            "without making progress in monitoring enqueued collectives.",
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated after "
            "dumping debug info. workMetaList_.size()=103",
        ),
        says="hang",
    ),
    Pattern(
        "watchdog.dump_signal",
        r"[Rr]eceived a dump signal due to a collective timeout from (?:this local rank|rank (?P<from_rank>\d+))",
        ("dump signal due to a collective timeout",),
        (
            "[rank3]:[E620 05:06:20.2 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due "
            "to a collective timeout from rank 34 and we will try our best to dump the debug info.",
        ),
    ),
    Pattern(
        "desync.lagging",
        r"\[(?P<ranks>\d+(?:, ?\d+)*)\] (?P<state>finished|joined|started) (?:collective )?#(?P<done>\d+)[^#]*didn't join (?:collective )?#(?P<next>\d+)"
        r"|\[(?P<ranks_>\d+(?:, ?\d+)*)\] joined but didn't finish collective #(?P<unfinished>\d+)",
        ("didn't join", "joined but didn't finish"),
        (
            "\t   - [7] finished collective #182, but didn't join collective #183 (count from 1)",
            "   - [3, 5] joined but didn't finish collective #42 (count from 1)",
        ),
        says="hang",
    ),
    Pattern(
        "desync.state",
        r"^\s*\[(?P<ranks>\d+(?:, ?\d+)*)\] (?P<state>started|finished) (?P<op>[A-Z_]+)\b",
        ("] started ", "] finished "),
        ("     [0, 1, 2] started ALLREDUCE", "     [7] finished ALLREDUCE"),
        ("[worker] finished epoch 3", "[12] finished reading"),
    ),
    Pattern(
        "frtrace.culprit",
        r"Culprit rank (?P<rank>\d+); Error type: (?P<what>\w+)",
        ("Culprit rank ",),
        ("error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[1025]]'",),
    ),
)
