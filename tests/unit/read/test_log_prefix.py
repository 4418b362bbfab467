"""What stands before a line: who printed it and where."""

from __future__ import annotations

import pytest

from unhang.model import LogLine
from unhang.read.logs.prefix import MAX_DEPTH, PrefixReader
from unhang.read.output_log import parse_output, split_glued

GLOG = "[E1122 02:49:14.137965351 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout"


def lines(*text: str, rank: int | None = None) -> tuple[LogLine, ...]:
    return parse_output("\n".join(text).encode(), "job.log", rank).lines


def only(text: str) -> LogLine:
    return lines(text)[0]


@pytest.mark.parametrize(
    ("line", "rank", "host", "text"),
    [
        ("[rank3]: boom", 3, "", "boom"),
        ("[rank3]:   File x", 3, "", "  File x"),
        (f"[rank13]:{GLOG}", 13, "", GLOG),
        ("rank3: Traceback (most recent call last):", 3, "", "Traceback (most recent call last):"),
        ("[default0]:hello", 0, "", "hello"),
        ("[trainer1]:  indented", 1, "", "  indented"),
        ("[1,3]<stdout>:hello", 3, "", "hello"),
        ("[1,3]<stderr>: hello", 3, "", "hello"),
        ("[3]<stderr>:hello", 3, "", "hello"),
        ("[1,mpirank:5,algo-2]<stderr>:hello", 5, "algo-2", "hello"),
        ("[prterun-node7-77@1,3]<stdout>: hello", 3, "", "hello"),
        ("Thu Feb 20 12:00:00 2025[1,3]<stdout>:hello", 3, "", "hello"),
        ("2019-05-19T05:03:07.880Z: [1,12]<stdout>:node-c:394:477 [0] a.cu:80 NCCL WARN x", 12, "node-c", None),
        ("10.10.20.197: hello", None, "10.10.20.197", "hello"),
        ("(RayTrainWorker pid=123, ip=10.0.0.2) hello", None, "10.0.0.2", "hello"),
        ("(RayTrainWorker pid=123, ip=10.0.0.2) [rank7]:   x", 7, "10.0.0.2", "  x"),
        ("(worker6, rank=6, pid=1573, ip=10.62.15.119)   File x", None, "worker6", "  File x"),
        ("(VllmWorker rank=3 pid=5566) ERROR 10-12 14:44:59 x.py:1] y", 3, "", None),
        ("[pod/trainer-worker-3/pytorch] [rank9]: x", 9, "trainer-worker-3", "x"),
        ("jobs/trainer-worker-3[pytorch]: [rank9]: x", 9, "trainer-worker-3", "x"),
        ("[2026-02-24 05:30:58 TP10] Capture", 10, "", "Capture"),
        ("[2026-02-24 05:30:58 DP1 TP10] Capture", None, "", "Capture"),
        ("[2026-02-24 05:30:58 TP1] [rank9]: x", 9, "", "x"),
        ("[rank: 3] Child process with PID 7 terminated", 3, "", "Child process with PID 7 terminated"),
        ("[2023-05-09T17:53:16.123456Z] [rank=0] || INFO: x", 0, "", "|| INFO: x"),
        ("2024-01-01 12:00:00,123: rank3[1234][MainThread]: DEBUG: x: y", 3, "", None),
        ("Jul 13 03:30:18     dist.barrier()", None, "", "    dist.barrier()"),
        ("Jul 13 03:30:18 node7 torchrun[991]: [rank2]: x", 2, "node7", "x"),
        ("Jul 13 03:30:18 node7 kernel: NVRM: Xid 79", None, "node7", "kernel: NVRM: Xid 79"),
        ("2025-02-18T02:54:01.123456789Z stderr F [rank2]: x", 2, "", "x"),
        ("train\tRun job\t2025-02-18T02:54:01.1234567Z [rank2]: x", 2, "", "x"),
        (" 2025-02-18 02:54 [rank13]:" + GLOG, 13, "", GLOG),
        ("node-h:51592:36030 [0] NCCL INFO x", None, "node-h", "node-h:51592:36030 [0] NCCL INFO x"),
        ("[2025-07-01 05:49:24] node4:43:43 [1] nvls.cc:254 NCCL WARN x", None, "node4", None),
        (GLOG, None, "", GLOG),
        ("[Rank 3] Watchdog caught", None, "", "[Rank 3] Watchdog caught"),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 1] x", None, "", None),
        ("ValueError: host not found", None, "", "ValueError: host not found"),
        ("(most recent call first): x", None, "", "(most recent call first): x"),
        ("[1]:", None, "", "[1]:"),
        ("3: loss 2", None, "", "3: loss 2"),
        ("cuda:0 | 3 GB", None, "", "cuda:0 | 3 GB"),
        ("2024-05-26 00:46:49,707::train.py::DEBUG Before", None, "", None),
        ("02/15/2025 01:54:54 - INFO - x", None, "", None),
    ],
)
def test_prefixes_of_one_line(line: str, rank: int | None, host: str, text: str | None) -> None:
    found = only(line)
    assert (found.rank, found.host) == (rank, host)
    assert line.endswith(found.text)
    assert text in (None, found.text)


def test_what_a_line_tells_of_itself_stays_in_it() -> None:
    for line in (
        "2024-05-26 00:46:49,707::train.py::DEBUG Before",
        "02/15/2025 01:54:54 - INFO - x",
        "2025-02-18 02:54:01.123 | INFO     | m:f:12 - x",
        "INFO 11-01 05:38:57 distributed_gpu_executor.py:56] x",
        "W1122 04:29:04.631636 247807 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal",
    ):
        found = only(line)
        assert found.text == line
        assert found.time_ns is not None


def test_the_rank_in_the_head_of_icefalls_logger() -> None:
    line = "2023-04-17 09:43:50,318 INFO [trainer.py:650] (3/8) Reaches end of dataloader."
    assert (only(line).rank, only("see INFO [a.py] (3/8) of it").rank) == (3, None)


def test_the_rank_before_the_lines_of_allennlps_workers() -> None:
    read = lines(*(f"{r} | 2020-11-14 13:29:1{r},510 - INFO - trainer - Epoch 8/49" for r in (0, 1, 0, 1)))
    assert [line.rank for line in read] == [0, 1, 0, 1]
    assert not any(line.text.startswith(("0 |", "1 |")) for line in read)


def test_stacked_prefixes_in_any_order() -> None:
    stamp, pod, rank = "2025-02-18T02:54:01.5Z ", "[pod/w-3/pytorch] ", "[rank9]: "
    for stack in ((stamp, pod, rank), (pod, stamp, rank), (pod, "[default1]:", stamp, rank)):
        found = only("".join(stack) + "x")
        assert (found.rank, found.host, found.text) == (9, "w-3", "x")
        assert found.time_ns == 1_739_847_241_500_000_000
    assert only("2025-02-18T02:54:01.5Z " * 100).text.count("2025") == 100 - MAX_DEPTH


def test_srun_numbers_tasks_only_where_all_lines_have_them() -> None:
    assert [(x.rank, x.text) for x in lines(" 3: a", "11: b", " 3: c")] == [(3, "a"), (11, "b"), (3, "c")]
    assert {x.rank for x in lines("0: loss 3", "1: loss 2", "2: loss 1", "3: loss 1")} == {None}


def test_a_task_that_holds_a_node_is_no_rank() -> None:
    found = lines("0: [rank3]: x", "1: [rank9]: x", "0: srun text", "1: Traceback (most recent call last):")
    assert [x.rank for x in found] == [3, 9, None, None]


def test_hosts_of_pdsh() -> None:
    found = lines("node01: a", "node02:   b", "node01:", "node02: [rank9]: c")
    assert [(x.host, x.text, x.rank) for x in found] == [
        ("node01", "a", None),
        ("node02", "  b", None),
        ("node01", "", None),
        ("node02", "c", 9),
    ]
    for text in (("RuntimeError: a", "ValueError2: b"), ("step1: a", "step2: b", "step3: c"), ("INFO: a", "INFO: b")):
        assert {x.text for x in lines(*text)} == set(text)


def test_pods_and_services() -> None:
    compose = lines("worker-1  | [rank1]: a", "worker-0  | b", "worker-1  |   c")
    assert [(x.host, x.rank, x.text) for x in compose] == [
        ("worker-1", 1, "a"),
        ("worker-0", None, "b"),
        ("worker-1", None, "  c"),
    ]
    stern = lines("trainer-worker-3 pytorch a", "trainer-worker-0 pytorch [rank0]: b", "trainer-worker-3 pytorch   c")
    assert [(x.host, x.rank, x.text) for x in stern][1:] == [
        ("trainer-worker-0", 0, "b"),
        ("trainer-worker-3", None, "  c"),
    ]


def test_a_local_rank_is_global_on_one_node_only() -> None:
    assert [x.rank for x in lines("[default3]:a", "[default0]:b")] == [3, 0]
    beside = lines("[default0]:[rank8]: a", "[default1]:b")
    assert [x.rank for x in beside] == [8, 9]
    agents = lines("node1: [default0]:a", "node2: [default0]:b", "node2: [default1]:[rank9]: c", "node1: d", "node2: e")
    assert [x.rank for x in agents] == [None, 8, 9, None, None]
    listed = lines(
        "  restart_count=0", "  group_world_size=2", "  local_ranks=[0, 1]", "  global_ranks=[2, 3]", "[default1]:x"
    )
    assert listed[-1].rank == 3
    assert lines("  group_rank=1", "  group_world_size=2", "[default1]:x")[-1].rank is None


def test_the_role_rank_counts_within_a_node() -> None:
    found = lines("[rank0]:[titan] start", "[rank0]:[rank8]: Traceback", "[rank1]:loss")
    assert [x.rank for x in found] == [8, 8, 9]


def test_a_message_behind_a_bar_keeps_its_rank() -> None:
    bar = " 94%|#########4| 837/888 [9:42:50<34:08, 40.17s/it]"
    found = lines(
        f"{bar}[rank7]:{GLOG}", f"[rank0]: {bar}[rank7]:{GLOG}", f"{bar}[E ProcessGroupNCCL.cpp:475] [Rank 2] x"
    )
    assert [(x.rank, x.source.line) for x in found] == [(None, 1), (7, 1), (0, 2), (7, 2), (None, 3), (None, 3)]
    assert found[1].text == GLOG
    assert found[0].text == bar
    assert found[-1].text == "[E ProcessGroupNCCL.cpp:475] [Rank 2] x"
    assert split_glued("see 3%| then [rank in braces") == ("", "see 3%| then [rank in braces")
    assert [x.rank for x in lines(f"[default0]:{bar}[default2]:{GLOG}", "[default2]:x")] == [0, 2, 2]


def test_nccl_lines_get_the_rank_of_their_process() -> None:
    init = "n1:10:11 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE"
    other = "n2:10:11 [0] NCCL INFO comm 0x2 rank 1 nRanks 2 cudaDev 0 - Init COMPLETE"
    warn = "n2:10:99 [0] net.cc:1 NCCL WARN x"
    assert lines(init, other, warn)[-1].rank == 1
    assert lines(init, other, "[rank5]: y", warn)[-1].rank is None
    twice = "n1:12:13 [0] NCCL INFO comm 0x3 rank 1 nranks 2 cudaDev 0 - Init COMPLETE"
    assert lines(init, other, twice, warn)[-1].rank is None


def test_nccl_processes_have_the_ranks_of_the_channels_that_they_set_up() -> None:
    said = [
        f"n{h}:{70 + d}:90 [{d}] NCCL INFO Channel 0{c}/0 : {{}} via NET/IB/0"
        for h, d, c in ((1, 0, 0), (1, 1, 0), (2, 0, 1))
    ]
    ends = ("2[1a000] -> 0[1a000] [receive]", "1[3d000] -> 2[1a000] [send]", "1[3d000] -> 2[1a000] [receive]")
    channels = [line.format(end) for line, end in zip(said, ends, strict=True)]
    warn = "n2:70:99 [0] net.cc:1 NCCL WARN x"
    assert [x.rank for x in lines(*channels, warn)] == [0, 1, 2, 2]
    assert [x.rank for x in lines(*channels[1:], warn)] == [
        None,
        None,
        None,
    ]  # those that are missing may be of another group


def test_the_device_in_nccls_prefix_is_no_column_of_ranks() -> None:
    said = [
        f"n{h}:{70 + d}:90 [{d}] NCCL INFO {text}"
        for h in (1, 2)
        for text in ("Bootstrap", "Using network IB")
        for d in (1, 0)
    ]
    assert {x.rank for x in lines(*said)} == {None}


def test_processes_get_the_rank_that_they_told() -> None:
    found = lines("(W pid=7, ip=1.2.3.4) [rank3]: a", "(W pid=7, ip=1.2.3.4) b", "(W pid=7, ip=1.2.3.5) c")
    assert [x.rank for x in found] == [3, 3, None]


def test_processes_whose_engine_told_their_rank_once() -> None:
    said = "(Engine pid=7) (Worker pid=8) INFO 06-05 09:15:54 [p.py:1] world_size=2 rank=1 local_rank=1 init=tcp://x"
    found = lines(said, "(Engine pid=7) (Worker pid=8) boom", "(Engine pid=7) (Worker pid=9) c", "(Engine pid=7) d")
    assert [x.rank for x in found] == [1, 1, None, None]
    other = said.replace("rank=1 local", "rank=0 local")
    assert [x.rank for x in lines(said, other)] == [None, None]
    ratio = lines("(W pid=8) Epoch 3/4 rank 1 of the list", "(W pid=8) b")
    assert [x.rank for x in ratio] == [None, None]


def test_replicas_that_share_a_group_are_ranks_of_it() -> None:
    stamp = "[2026-05-14 07:55:31"
    shared = [f"{stamp} DP{n} TP{n} EP{n}] begin" for n in (0, 1, 13)]
    assert [x.rank for x in lines(*shared)] == [0, 1, 13]
    halves = [f"{stamp} DP{n // 2} TP{n}] begin" for n in range(4)]
    assert [x.rank for x in lines(*halves)] == [0, 1, 2, 3]
    apart = [f"{stamp} DP{n // 2} TP{n % 2}] begin" for n in range(4)]
    assert {x.rank for x in lines(*apart)} == {None}
    assert {x.rank for x in lines(*shared[:2])} == {None}
    assert [x.rank for x in lines("enable_dp_attention=True", *shared[:2])] == [None, 0, 1]
    assert {x.rank for x in lines(*(f"{stamp} PP{n} TP{n}] begin" for n in range(4)))} == {None}


def test_stages_of_a_pipeline_follow_each_other() -> None:
    stamp = "[2026-05-14 07:55:31"
    assert [x.rank for x in lines(*(f"{stamp} PP{n}] begin" for n in (0, 2)))] == [0, 2]
    assert [x.rank for x in lines(*(f"{stamp} TP{n % 2} PP{n // 2}] begin" for n in range(4)))] == [0, 1, 2, 3]
    named = ["Worker_PP0_TP0", "Worker_PP0_TP1_EP1", "Worker_PP1_TP1"]
    assert [x.rank for x in lines(*(f"({name} pid={n}) begin" for n, name in enumerate(named)))] == [0, 1, 3]
    assert {x.rank for x in lines("(Worker_PP0_TP0 pid=8) a", "(Worker_PP1_TP0 pid=9) b")} == {None}
    assert [x.rank for x in lines("(Worker_TP1_DCP1 pid=8) a", "(Worker_DP1_TP0 pid=9) b")] == [1, None]
    raised = (f"{stamp} PP1] Scheduler hit an exception: Traceback (most recent call last):", '  File "a.py", line 3')
    assert [x.rank for x in lines(f"{stamp} PP0] a", *raised, "TypeError: no")] == [0, 1, 1, 1]


def test_what_a_library_says_is_of_the_process_that_it_names() -> None:
    said = "world_size=2 rank={} local_rank={}"
    found = lines(
        *(f"(W pid={8 + r}) {said.format(r, r)}" for r in (0, 1)), "[HAMI-core ERROR (pid:9 thread=9 a.c:3)]: no"
    )
    assert found[2].rank == 1


def test_a_task_that_prints_for_several_is_no_rank() -> None:
    stamp = "[2026-05-14 07:55:31"
    found = lines(f"0: {stamp} TP0] a", f"0: {stamp} TP1] b", f"1: {stamp} TP8] c", f"1: {stamp} TP9] d", "1: e")
    assert [x.rank for x in found] == [0, 1, 8, 9, None]


def test_the_lines_of_an_exception_belong_to_the_tag_before_its_first() -> None:
    stamp = "[2026-05-14 07:55:31"
    raised = (f"{stamp} TP3] hit an exception: Traceback (most recent call last):", '  File "a.py", line 3, in f')
    found = lines(*raised, "TypeError: no", f"{stamp}] SIGQUIT received", "more")
    assert [x.rank for x in found] == [3, 3, 3, None, None]
    collected = lines(
        *(f"2026-05-14T07:55:32.123456789Z {x}" for x in (*raised, "TypeError: no", f"{stamp}] SIGQUIT", "more"))
    )
    assert [x.rank for x in collected] == [3, 3, 3, None, None]


def test_the_rank_of_a_file_holds_where_no_line_says_otherwise() -> None:
    assert [x.rank for x in lines("a", "[rank2]: b", rank=4)] == [4, 2]


def test_a_reader_never_loops() -> None:
    reader = PrefixReader(["[rank1]:" * 500])
    assert len(reader.read("[rank1]:" * 500).torch_ranks) == MAX_DEPTH


def test_lines_made_to_be_slow_are_survived() -> None:
    for text in (
        "[rank1]: " * 50_000,
        "(" * 100_000,
        "it/s" + "[rank1]:[E " * 50_000,
        "a-" * 100_000,
        "[default" * 50_000,
    ):
        assert len(lines(text, text)) >= 2


def test_a_traceback_that_an_engines_logger_writes_line_by_line() -> None:
    head = "(VllmWorkerProcess pid=302) ERROR 01-19 03:55:24 multiproc_worker_utils.py:233] "
    reader = PrefixReader([])
    for rest in ('  File "worker.py", line 166, in init', "RuntimeError: no", "Traceback (most recent call last):", ""):
        found = reader.read(head + rest)
        assert (found.body, found.pid) == (rest, 302)
    kept = "ERROR 01-19 03:55:24 engine.py:233] Engine died"
    assert reader.read(kept).body == kept
