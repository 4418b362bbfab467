"""Ranks that stand apart by their own lines, in many wordings and under many labels, each beside a twin in which nothing tells them apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest

from unhang.model import Diagnosis, Outcome
from unhang.read.logs.case import log_case
from unhang.rules.registry import judge

WORLD = 4
LABELS: dict[str, Callable[[int, str], str]] = {
    "torchrun": lambda r, text: f"[rank{r}]: {text}",
    "mpirun": lambda r, text: f"[1,{r}]<stdout>:{text}",
    "srun": lambda r, text: f"{r}: {text}",
    "in words": lambda r, text: f"2025-03-01 10:00:0{r},120 - train - INFO - [Rank {r}] {text}",
    "named field": lambda r, text: f"INFO:trainer:rank={r} {text}",
    "short": lambda r, text: f"[R{r}] {text}",
    "device": lambda r, text: f"[GPU {r}] {text}",
}


def wait(rank: int, op: str = "ALLREDUCE", numel: int = 1259621, seq: int = 820) -> str:
    """A watchdog's line on a wait that ran out."""
    return (
        f"[rank{rank}]:[E301 10:30:00.{rank}03065646 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600058 milliseconds before timing out."
    )


OF_LAUNCHERS = ("mpirun", "srun")  # they label every line, also those of libraries


def log(lines: Iterable[str], label: str = "torchrun") -> str:
    head = [f"[rank{r}]: init done world_size={WORLD}" for r in range(WORLD)]
    if label in OF_LAUNCHERS:
        named = ((int(match[1]), line) for line in (*head, *lines) if (match := re.search(r"(\d)", line)))
        return "".join(f"{line if not line.startswith('[rank') else LABELS[label](r, line)}\n" for r, line in named)
    return "\n".join([f"torchrun --nproc-per-node {WORLD} train.py", *head, *lines]) + "\n"


def pairs(first: Sequence[str], second: Sequence[str]) -> list[object]:
    """All pairs; each of either once in every run, the others where the whole is tested."""
    most = max(len(first), len(second))
    few = {(first[i % len(first)], second[i % len(second)]) for i in range(most)}
    return [pytest.param(*pair, marks=[] if pair in few else pytest.mark.whole) for pair in product(first, second)]


def said(text: str) -> tuple[str, str, tuple[int, ...]]:
    """Rule, cause and culprits of the first finding."""
    first = judge(log_case(text)).findings[:1]
    return (first[0].rule, first[0].cause, first[0].culprit_ranks) if first else ("", "", ())


def outcome(text: str) -> Diagnosis:
    return judge(log_case(text))


# Who waits counted to less, later than those who do not.

COUNTS = {
    "step": "step {n} loss {x:.3f}",
    "bar": "Epoch 3: {n}batch [00:03, 10.5{n}batch/s]",
    "unbounded bar": "train: {n}it [00:03, 10.51it/s]",
    "of a total": "epoch 3 batch {n}/40",
    "field": "batch_idx={n} lr=0.001",
    "iteration": "iteration: {n} | throughput {x:.1f}",
    "processed": "processed {n} samples",
    "update": "update #{n} done",
}


def counted(label: str, words: str, last: Sequence[int], late_last: bool = True) -> list[str]:
    """What the ranks count in turn; who counted least speaks last, or first."""
    tell = LABELS[label]
    lines = [tell(r, COUNTS[words].format(n=n, x=1 / n)) for n in (8, 16) for r in range(WORLD)]
    order = sorted(range(WORLD), key=lambda r: -last[r] if late_last else last[r])
    return [*lines, *(tell(r, COUNTS[words].format(n=last[r], x=1 / last[r])) for r in order)]


@pytest.mark.parametrize(("label", "words"), pairs(list(LABELS), list(COUNTS)))
def test_who_counted_past_the_waiting_has_left_the_loop(label: str, words: str) -> None:
    lines = [*counted(label, words, (35, 26, 35, 35)), wait(1)]
    assert said(log(lines, label)) == ("counted-past", "uneven-inputs", (0, 2, 3))
    for last, late_last in (((35, 35, 35, 35), True), ((35, 26, 35, 35), False), ((26, 35, 26, 26), True)):
        assert said(log([*counted(label, words, last, late_last), wait(1)], label))[0] != "counted-past"
    assert said(log(counted(label, words, (35, 26, 35, 35)), label))[0] == ""


# Who said its end.

ENDS = [
    "Destroying process group... Done.",
    "process group destroyed",
    "exiting with code 0",
    "Early stopping: no improvement. Training finished.",
    "Finished training after 12 epochs",
    "Done!",
    "Training complete (0.071 hours)",
    "End of run",
    "training done, bye",
    "all epochs completed",
    "FINISH",
]
NO_ENDS = [
    "Finished validation",
    "training will be done when the others are ready",
    "done loading the dataset",
    "epoch 3 done",
    "waiting for the end of training",
    "tokenizing finished",
    "compilation done",
    "finish building the index",
]
STEPS = [f"step {n} loss {1 / n:.3f}" for n in range(1, 6)]


@pytest.mark.parametrize(("label", "end"), pairs(("torchrun", "in words", "srun", "unlabelled"), ENDS))
def test_who_said_that_it_ends_has_left(label: str, end: str) -> None:
    tell = LABELS.get(label, lambda _, text: text)
    lines = [*(tell(0, text) for text in (*STEPS, end)), *(wait(r) for r in (1, 2, 3))]
    assert said(log(lines, label))[1:] == ("rank-exited-early", (0,))


@pytest.mark.parametrize("end", NO_ENDS)
def test_the_end_of_a_part_is_no_end(end: str) -> None:
    lines = [*(LABELS["torchrun"](0, text) for text in (*STEPS, end)), *(wait(r) for r in (1, 2, 3))]
    assert said(log(lines))[0] != "told-its-end"


def test_nor_is_one_behind_which_it_saves_or_moves_or_that_all_told() -> None:
    tell, waits = LABELS["torchrun"], [wait(r) for r in (1, 2, 3)]
    for more in ("Saving model checkpoint to out/", "step 6 loss 0.100"):
        assert said(log([*(tell(0, t) for t in (*STEPS, "Training finished.", more)), *waits]))[0] != "told-its-end"
    everybody = [tell(r, text) for text in (*STEPS, "Training finished.") for r in range(WORLD)]
    assert said(log([*everybody, *waits]))[0] != "told-its-end"
    barrier = [wait(r, numel=1) for r in (1, 2, 3)]
    assert said(log([*(tell(0, t) for t in (*STEPS, "Training finished.")), *barrier]))[0] != "told-its-end"


# A number that sets those apart whose calls set them apart.

NUMBERS = {
    "field": "len={n} max_len=20",
    "colon": "num_seqs: {n}",
    "words": "{n} requests left in the queue",
    "shape": "input shape ({n}, 128)",
    "beside a fraction": "loss 0.{rank}31 tokens={n} of 4096",
    "json": '{{"event": "batch", "tokens": {n}}}',
    "arrow": "experts routed -> {n}",
}


def numbers(label: str, words: str, values: Sequence[int]) -> list[str]:
    return [LABELS[label](r, NUMBERS[words].format(n=n, rank=r)) for r, n in enumerate(values)]


ELSEWHERE = [wait(2, seq=826), *(wait(r) for r in (0, 1, 3))]


@pytest.mark.parametrize(("label", "words"), pairs(list(LABELS), list(NUMBERS)))
def test_a_number_and_the_calls_set_the_same_rank_apart(label: str, words: str) -> None:
    found = said(log([*numbers(label, words, (20, 20, 19, 20)), *ELSEWHERE], label))
    assert found[0] == "unlike-numbers"
    assert found[2] == (2,)
    for values in ((20, 20, 20, 20), (19, 20, 20, 20), (20, 18, 19, 17)):
        assert said(log([*numbers(label, words, values), *ELSEWHERE], label))[0] != "unlike-numbers"
    assert said(log(numbers(label, words, (20, 20, 19, 20)), label))[0] == ""


@pytest.mark.parametrize(
    "words", ["took {n} s", "mem {n} MiB", "port {n}", "time 10:00:{n}", "pid={n}", "{n}% used", "device {n}"]
)
def test_what_is_measured_or_a_ranks_own_sets_nobody_apart(words: str) -> None:
    lines = [LABELS["torchrun"](r, words.format(n=n)) for r, n in enumerate((20, 20, 19, 20))]
    assert said(log([*lines, *ELSEWHERE]))[0] != "unlike-numbers"
    rounds = [LABELS["torchrun"](r, words.format(n=n)) for n in (17, 18) for r in range(WORLD)]
    assert said(log([*rounds, *lines, *ELSEWHERE]))[0] != "unlike-numbers"


@pytest.mark.parametrize(("label", "words"), pairs(list(LABELS), list(NUMBERS)))
def test_numbers_that_were_alike_in_every_round_but_the_last(label: str, words: str) -> None:
    before = [line for n in (20, 31, 24) for line in numbers(label, words, (n,) * WORLD)]
    waits = [wait(r) for r in (0, 1, 3)]
    assert said(log([*before, *numbers(label, words, (20, 20, 19, 20)), *waits], label))[0] == "unlike-numbers"
    assert said(log([*before, *numbers(label, words, (20,) * WORLD), *waits], label))[0] != "unlike-numbers"


# Common work with which a few are not done.

WORKS = [
    "step 250: dcp save -> /weka/step_250",
    "Saving sharded checkpoint to /out/step_250",
    "writing distributed checkpoint, 16 writers",
    "checkpointing FSDP state to /out",
    "saving ZeRO optimizer states of all ranks",
    "uploading checkpoint shards",
]


def common(text: str, world: int = 16, late: Sequence[int] = (5, 9), numel: int = 1) -> str:
    steps = [LABELS["torchrun"](0, f"step {n} loss {1 / n:.3f}") for n in range(1, 6)]
    waits = [wait(r, numel=numel) for r in range(world) if r not in late]
    return (
        "\n".join([f"torchrun --nproc-per-node {world} train.py", *steps, LABELS["torchrun"](0, text), *waits]) + "\n"
    )


@pytest.mark.parametrize("text", WORKS)
def test_a_few_are_not_done_with_what_all_do(text: str) -> None:
    assert said(common(text)) == ("late-in-common-work", "straggler", (5, 9))
    assert said(common(text, numel=1 << 20))[0] != "late-in-common-work"
    assert said(common(text, late=(0, 5)))[0] != "late-in-common-work"
    assert said(common(text, late=range(5, 16)))[0] != "late-in-common-work"
    assert said(common(f"{text}: done"))[0] != "late-in-common-work"


@pytest.mark.parametrize("end", ["FINISH", "Done!", "all epochs completed"])
@pytest.mark.parametrize("how", ["Creating fp16 ZeRO stage 3 optimizer", "model wrapped: FullyShardedDataParallel("])
def test_so_it_has_where_the_others_gather_parameters_that_lie_in_parts(how: str, end: str) -> None:
    tell = LABELS["torchrun"]
    lines = [tell(0, how), *(tell(r, text) for text in STEPS for r in range(WORLD)), tell(2, end)]
    gathers = [wait(r, "_ALLGATHER_BASE", 4_000_000) for r in (0, 1, 3)]
    assert said(log([*lines, *gathers]))[1:] == ("rank-exited-early", (2,))
    assert (
        said(log([*lines[1:], *gathers]))[0] != "told-its-end"
    )  # a gather of results: the rank may be at work on its own


# The end of a log in its program's own words.

LAST_WORDS = [
    ["Training completed in 3.2 hours"],
    ["2023-08-21 18:48:58,774 Reach the maximal number of epochs: 3. Finish training."],
    ["Training time 1:56:41"],
    ["INFO:ignite.Engine: Engine run complete. Time taken: 00:02:31", "Finalized"],
    ["finished, 200 iterations"],
    ["done"],
    ["$ echo $?", "0"],
    ["+ echo 'job end' $?", "job end 0"],
    ["Ran 12 tests in 63.388s", "", "OK"],
    ["======== 12 passed, 1 skipped in 63.39s (0:01:03) ========"],
    ["[rank0]: everything done, goodbye"],
    ["DONE on gnode18"],
    ["All steps finished."],
    ["Total training time: 0:31:10"],
    ["iteration 200/200 loss 0.1", "Saving Model...", "Saved model to out/last.pt"],
    ["epoch 3/3 loss 0.1", "best accuracy 0.71"],
    ["wandb: Run summary:", "wandb: loss 0.1", "wandb: Synced 5 W&B file(s), 0 media file(s)"],
    ["***** train metrics *****", "  epoch = 3.0", "  train_runtime = 0:01:02"],
    ["real\t12m3.412s", "user\t40m1.002s", "sys\t1m0.112s"],
    ["(env) user@node-a:~/train$ "],
    ["Elapsed time: 812.1 s"],
    ["process group destroyed"],
    ["+ echo rc 0 0", "rc 0 0"],
    ["exit code: 0"],
    ["2022-03-31 - INFO - submitit - Job completed successfully"],
]
NO_LAST_WORDS = [
    ["epoch 1 done"],
    ["Finished validation"],
    ["Epoch: [298] Total time: 0:09:12"],
    ["$ echo $?", "1"],
    ["Ran 12 tests in 63.388s", "", "FAILED (errors=1)"],
    ["======== 1 failed, 11 passed in 63.39s ========"],
    ["training will be done soon"],
    ["iteration 199/200 loss 0.1", "Saving Model..."],
    ["iteration 200/200 loss 0.1", "Saving model checkpoint to out/"],
    ["iteration 200/200 loss 0.1"],
    ["epoch 2/3 step 200/200 loss 0.1", "best accuracy 0.71"],
    ["Training completed in 3.2 hours", "RuntimeError: NCCL error: unhandled system error"],
    ["Training time 1:56:41", "^C"],
    ["done", "$ py-spy dump --pid 71"],
    ["done with loading"],
    ["+ echo rc 0 1", "rc 0 1"],
    ["Test: Total time: 0:00:24"],
    ["wandb: Tracking run with wandb version 0.16"],
    ["(env) user@node-a:~/train$ py-spy dump --pid 71"],
    ["waiting for training to be finished"],
]


@pytest.mark.parametrize("end", LAST_WORDS, ids=lambda end: end[0])
def test_a_log_that_tells_its_end_is_clean(end: Sequence[str]) -> None:
    found = outcome("\n".join(["$ torchrun --nproc-per-node 4 train.py", *STEPS, *end]) + "\n")
    assert (found.outcome, found.findings) == (Outcome.CLEAN, ())


@pytest.mark.parametrize("end", NO_LAST_WORDS, ids=lambda end: end[0])
def test_one_that_does_not_is_not(end: Sequence[str]) -> None:
    assert (
        outcome("\n".join(["$ torchrun --nproc-per-node 4 train.py", *STEPS, *end]) + "\n").outcome is not Outcome.CLEAN
    )


def test_nor_one_of_which_a_rank_that_moved_did_not_say_so() -> None:
    lines = [LABELS["torchrun"](r, text) for text in STEPS for r in range(2)]
    told = [LABELS["torchrun"](r, "all steps finished") for r in range(2)]
    assert outcome(log([*lines, *told])).outcome is Outcome.CLEAN
    assert outcome(log([*lines, told[0]])).outcome is not Outcome.CLEAN


# A log that ends amid the training: whatever the words, the same line comes again with other numbers up to its last lines.

AT_WORK = [
    "iter {n} step {n}: loss 4.1, LR: 0.0005, iter time: 2443.84ms",
    "Train: 0 [{n}/22450 (  6%)]  Loss: 8.48 (8.51)  Time: 0.639s,  801.15/s  LR: 1.000e-05",
    "[train..][epoch:  4, iter:   5,{n}, lr:(2.000e-04,)] [eta: 5 days, 1:15:55, time (data): 0.883 (0.003)] l_pix: 1.3e-02",
    "Steps:  10%|#         | {n}/1499 [04:03<1121:41:32, 3.71it/s, loss=4.39]",
]
SERVES = ["INFO: Application startup complete.", 'INFO: 10.0.0.4:41712 - "POST /v1/chat/completions HTTP/1.1" 200 OK']
STANDS = [["$ py-spy dump --pid 71"], ["^C"], [f"waiting for shard {n}" for n in range(20)], ["$ nvidia-smi"]]


@pytest.mark.parametrize("words", AT_WORK)
def test_a_job_that_goes_on_up_to_the_last_line_of_its_log(words: str) -> None:
    steps = [words.format(n=100 + n) for n in range(6)]
    found = outcome("\n".join([*steps, "Saved checkpoint"]))
    assert (found.outcome, found.findings, found.exit_code) == (Outcome.MOVES, (), 0)
    for behind in STANDS:
        assert outcome("\n".join([*steps, *behind])).outcome is not Outcome.MOVES
    assert outcome("\n".join(steps[:2])).outcome is Outcome.UNKNOWN
    assert outcome("\n".join([*steps, "RuntimeError: NCCL error: unhandled system error"])).outcome is Outcome.CRASH


def test_a_server_that_answers_up_to_the_last_line_of_its_log() -> None:
    up, answer = SERVES
    assert outcome("\n".join([up, answer, answer])).outcome is Outcome.MOVES
    assert (
        outcome("\n".join([up, answer.replace("200 OK", "500 Internal Server Error")] * 2)).outcome is Outcome.UNKNOWN
    )
    assert outcome("\n".join([answer, answer])).outcome is Outcome.UNKNOWN


# Amounts of data, and words of leaving.

AMOUNTS = [
    "{n} batches",
    "loaded {n} local train samples",
    "batches per epoch: {n}",
    "len(train_loader) = {n}",
    "len(self.dataset)={n}",
    "dataset size: {n}",
    "steps_per_epoch={n}",
    "num_rows: {n}",
    "this shard holds {n} entries",
    "train_loader length: {n}",
    "tokens {n}",
    "length of the sampler: {n}",
]


@pytest.mark.parametrize("words", AMOUNTS)
def test_who_has_less_data_and_does_not_wait(words: str) -> None:
    def told(values: Sequence[int]) -> list[str]:
        return [LABELS["torchrun"](r, words.format(n=n)) for r, n in enumerate(values)]

    waits = [wait(r) for r in (0, 1, 3)]
    assert said(log([*told((32, 32, 31, 32)), *waits]))[1:] == ("uneven-inputs", (2,))
    for values in ((32, 32, 32, 32), (32, 31, 32, 32)):
        assert said(log([*told(values), *waits]))[1] != "uneven-inputs"


LEAVES = [
    "skipping this batch",
    "StopIteration at 31",
    "bailing out of the loop",
    "discarded the sample, image is broken",
    "ran out of rows",
    "giving up on this microbatch",
    "falls back to the slow path",
    "end of stream",
    "abandoning the step, loss is inf",
    "finished its shard",
]


@pytest.mark.parametrize("words", LEAVES)
def test_who_alone_said_that_it_leaves(words: str) -> None:
    steps = [LABELS["torchrun"](r, f"forward of microbatch {n}") for n in range(3) for r in range(WORLD)]
    waits = [wait(r) for r in (0, 1, 3)]
    assert said(log([*steps, LABELS["torchrun"](2, words), *waits]))[1:] in (
        ("code-divergence", (2,)),
        ("uneven-inputs", (2,)),
    )
    everybody = [LABELS["torchrun"](r, words) for r in range(WORLD)]
    assert said(log([*steps, *everybody, *waits]))[0] not in ("skipped-by-some", "told-its-end")
