"""The truth about every job that the tests run: what becomes of it, why, through which rank and at which line.

Where several lines are right (the place where a rank waits and the branch that took it there), a case names them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
MARK = "# culprit"
EVERY_RANK = (0, 1, 2, 3)


@dataclass(frozen=True)
class Case:
    """One job and the truth about it.

    `lines`: texts that occur in exactly one line of the program each; without them the lines marked `# culprit` count.
    `kind`: proven or suspected, None where either is right. `some_culprits`: any of them is right, which one is chance.
    `location`: required, optional (what is named must be right), ignored.
    `launching`: options of the launcher; `watching`: of `unhang run`. `earlier`: the cause and the rank of each attempt after which the ranks were started again.
    `ends_itself`: its own limit ends it, not the watcher.
    `is_race`: on a busy machine the fault may not strike; then the job ends well, and is run again.
    """

    name: str
    program: str
    args: tuple[str, ...] = ()
    outcome: str = "hang"
    cause: str = ""
    culprits: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    kind: str | None = None
    some_culprits: bool = False
    location: str = "required"
    stall_after_s: float = 3
    abort_after_s: float | None = 1.5
    launcher: str = "fork"
    ranks: int = 4
    port_taken: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    ends_itself: bool = False
    is_race: bool = False
    launching: tuple[str, ...] = ()
    watching: tuple[str, ...] = ()
    earlier: tuple[tuple[str, int], ...] = ()

    @property
    def path(self) -> Path:
        """The program."""
        return (HERE / self.program).resolve()

    def truth(self) -> set[tuple[str, int]]:
        """The right answers: file name and line."""
        sources = [self.path, *(self.path.parent / name for name in self.files)]
        lines = [(s.name, i, text) for s in sources for i, text in enumerate(s.read_text().splitlines(), start=1)]
        if not self.lines:
            return {(name, number) for name, number, text in lines if text.endswith(MARK)}
        found = set()
        for wanted in self.lines:
            matching = [(name, number) for name, number, text in lines if wanted in text]
            if len(matching) != 1:
                raise LookupError(f"{self.name}: {wanted!r} occurs in {len(matching)} lines")
            found.add(matching[0])
        return found

    def __str__(self) -> str:
        return self.name


def _hang(name: str, cause: str, culprits: tuple[int, ...], kind: str | None = None, **more: object) -> Case:
    return Case(name, f"programs/{name}.py", cause=cause, culprits=culprits, kind=kind, **more)  # type: ignore[arg-type]


def _crash(name: str, cause: str, culprits: tuple[int, ...], **more: object) -> Case:
    return Case(name, f"programs/{name}.py", outcome="crash", cause=cause, culprits=culprits, **more)  # type: ignore[arg-type]


def _restarted(then: str, *launching: str, **more: object) -> Case:
    options = ("--restarts", "1", *launching)
    raised = (("user-exception", 1),)
    name = f"restarted-{then}{'' if launching else '-stale'}"
    return Case(name, "programs/restarted.py", (then,), launching=options, earlier=raised, **more)  # type: ignore[arg-type]


# The comment after a case says what gloo does by itself.
HANGS = [
    _hang("conditional_collective", "code-divergence", (0,), "proven"),  # waits: all_reduce against barrier
    _hang("skipped_step", "code-divergence", (2,), "proven"),  # waits: all_gather against all_reduce
    _hang(
        "swallowed_exception", "code-divergence", (1,), "proven"
    ),  # pairs silently until the last barrier, then waits
    _hang("subgroup_not_created_by_all", "code-divergence", (3,)),  # all wait for keys of the store in new_group
    _hang("uneven_batches", "uneven-inputs", (3,), "proven"),  # waits: barrier against all_reduce
    _hang("two_groups_opposite_order", "collective-order-race", (3,), "proven"),  # waits
    _hang("two_threads_one_group", "collective-order-race", (1,), "proven"),  # waits: all_gather against all_reduce
    _hang("p2p_recv_cycle", "collective-order-race", EVERY_RANK, "proven"),  # waits
    _hang("p2p_wrong_peer", "code-divergence", (2,), "proven"),  # send waits for its receive, however small
    _hang("slow_rank0_save", "slow-rank0-work", (0,), "suspected"),
    _hang("slow_rank0_eval", "slow-rank0-work", (0,), "suspected", files=("toy.py",)),
    _hang("rank0_preprocessing", "slow-rank0-work", (0,), "suspected"),
    _hang("lock_deadlock", "rank-stuck-in-user-code", (1,)),
    _hang("queue_get_forever", "rank-stuck-in-user-code", (2,), "suspected"),
    _hang("event_wait", "rank-stuck-in-user-code", (3,), "suspected"),
    _hang("endless_python_loop", "rank-stuck-in-user-code", (1,), "suspected"),
    _hang("regex_backtracking", "rank-stuck-in-user-code", (2,), "suspected"),
    _hang("dataloader_worker_stuck", "dataloader-hang", (1,), "suspected"),
    _hang("dataloader_slow_first_batch", "dataloader-hang", (2,), "suspected"),
    _hang("sigstop", "rank-frozen", (1,)),
    # Rank 3 has not yet joined: the watcher may not know it, so that its line cannot be demanded.
    _hang("rendezvous_incomplete", "rendezvous-incomplete", (3,), location="optional"),
    _hang("one_rank_twice", "rendezvous-incomplete", (3,), location="ignored"),
    _hang("shutdown_hang", "shutdown-hang", (1,), "suspected"),
    _hang("queue_never_done", "shutdown-hang", (0,), "suspected"),
    replace(
        _hang("receives_posted_early", "collective-order-race", (0, 1), "proven", ranks=3, args=("circle",)),
        name="receives_posted_early-circle",
    ),
    _hang("stages_send_crosswise", "collective-order-race", (1, 2), "proven", ranks=3),
    _hang("stages_send_one_more", "uneven-inputs", (0,), "proven", ranks=2),
    _hang("skips_for_another_reason", "code-divergence", (1,), "proven", ranks=3),
    _hang("sends_one_less", "code-divergence", (3,), "proven"),
    _hang("permits_kept", "rank-stuck-in-user-code", (2,), "suspected"),
    _hang("polls_alone", "rank-stuck-in-user-code", (3,), "suspected"),
    _hang("meets_by_files", "rank-stuck-in-user-code", EVERY_RANK, "suspected"),
    _restarted(
        "hangs",
        "--own-stores",
        cause="rank-stuck-in-user-code",
        culprits=(2,),
        lines=("time.sleep(600)",),
        kind="suspected",
    ),
    _hang("own_timeout", "rank-stuck-in-user-code", (2,), ends_itself=True, abort_after_s=None),
    _hang("waits_in_finally", "user-exception", (1,), "proven"),  # waits: barrier against all_reduce
    _hang("waits_in_exit", "user-exception", (2,), "proven"),
    _hang("caught_in_ring", "code-divergence", (2,), "proven"),
    _hang("key_not_set", "code-divergence", (0,)),  # all wait in the store
    _hang("key_passed_over", "code-divergence", (0,)),
    _hang("loader_left_early", "code-divergence", (2,), "proven"),
    _hang("loader_ends_early", "uneven-inputs", (3,), "proven"),
    _hang("list_shortened", "code-divergence", (1,), "proven"),
    _hang("patience_of_its_own", "code-divergence", (3,), "proven"),
    _hang("barrier_in_two_places", "code-divergence", (0,), "proven"),
    _hang("tail_skips_a_batch", "code-divergence", (1,), "proven", ranks=2),
    _hang("polls_for_file", "rank-stuck-in-user-code", (1,), "suspected"),
    _hang("lock_of_a_peer", "rank-stuck-in-user-code", (2,), "suspected"),
    _hang("receives_from_another", "code-divergence", (2,), "proven"),
    _hang("sends_and_should_receive", "code-divergence", (1,), "proven"),
    _hang("late_for_monitored_barrier", "rank-stuck-in-user-code", (1,), "suspected"),
    _hang("signal_saves", "code-divergence", (1,), "proven"),
    _hang("logs_in_a_framework", "code-divergence", (1,), "proven", files=("site-packages/loops.py",)),
    _hang("saves_in_a_framework", "code-divergence", (2,), "proven", files=("site-packages/loops.py",)),
    _hang("expert_without_tokens", "code-divergence", (1,), "proven"),
    _hang("resumed_elsewhere", "code-divergence", (1,), "proven"),
    _hang("receiver_stops_first", "uneven-inputs", (1,), "proven"),
    # The line is right both at the condition and at the collective that it guards, three calls and one file away.
    Case(
        "demo",
        "../../examples/demo/train.py",
        cause="code-divergence",
        culprits=(0,),
        kind="proven",
        lines=("done      {describe(metrics)}", "dist.all_reduce(values)"),
        files=("evaluation.py",),
    ),
]

STRAGGLERS = [
    # A straggler is known by its calls; its stack may not have been taken.
    _hang("straggler", "straggler", (2,), outcome="straggler", location="optional"),
]

CRASHES = [
    _crash("group_destroyed", "rank-exited-early", (0,)),
    _crash("size_mismatch", "size-mismatch", (2,)),  # SIGABRT of rank 2, which receives more than it expects
    _crash("dtype_mismatch", "size-mismatch", (1,)),  # SIGABRT of rank 0: doubles are twice as long
    _crash("unused_parameters", "unused-parameters", (1,)),  # RuntimeError of DDP on rank 1 in the next forward
    _crash("user_exception", "user-exception", (2,)),  # peers: connection closed
    _crash("half_written_file", "filesystem-race", (1,)),  # peers: connection closed
    _crash("exited_early", "rank-exited-early", (3,)),  # peers: connection closed; the culprit's exit code is 0
    _crash("os__exit", "rank-exited-early", (1,)),  # exit code 3
    _crash("sigkill", "rank-crashed-earlier", (2,), location="optional"),  # exit code -9
    _restarted("raises", "--own-stores", outcome="crash", cause="user-exception", culprits=(1,)),
    # The failure that the restart was for; that the restart cannot work comes second.
    _restarted("recovers", outcome="crash", cause="user-exception", culprits=(1,)),
    _crash("sigterm", "external-signal", (1,), location="optional"),  # one rank alone; the launcher ends the others
    _crash("port_in_use", "port-in-use", (0,), port_taken=True),  # DistNetworkError on rank 0, the others wait
]


def _story(story: str, fault: str, cause: str, culprits: tuple[int, ...], *lines: str, **more: object) -> Case:
    options = tuple(more.pop("options", ()))  # type: ignore[arg-type]
    name = "-".join([story.split("_")[0], fault, *(o.strip("-") for o in options)])
    args = ("--fault", fault, "--pg-timeout", "60", *options)
    return Case(name, f"stories/{story}.py", args, cause=cause, culprits=culprits, lines=lines, **more)  # type: ignore[arg-type]


_W0, _W1, _W2, _W3, _W4 = "w0_concept_mlm", "w1_mudiff", "w2_grpo", "w3_reid", "w4_nanochat"
_LOADER = ("in enumerate(started(tl, rank))", "yield from loader")
# This program sleeps 2 s in a `finally` before an exception ends it: that must not count as a hang.
_SLEEPS = {"outcome": "crash", "stall_after_s": 8}
_SWALLOW, _BARRIER = ("--mitigate", "swallow"), ("--mitigate", "barrier_in_except")

STORIES = [
    # Masked-LM with a concept bottleneck
    _story(_W0, "data_stall", "rank-stuck-in-user-code", (1,), 'a.fault == "data_stall"', kind="suspected"),
    # The hook that stops the process, and the backward pass that it runs in.
    _story(_W0, "frozen", "rank-frozen", (3,), 'a.fault == "frozen"', "loss.backward()"),
    _story(_W0, "oob_len", "user-exception", (2,), "x = s.tok(ids) + s.pos", outcome="crash"),
    # The call that raises one step later, and the branch that leaves the head out.
    _story(_W0, "unused_param", "unused-parameters", (1,), "loss = model(ids", "if skip_head:", outcome="crash"),
    # The collective that only two ranks have left, and the loop that runs once more for them.
    _story(
        _W0,
        "eval_uneven",
        "uneven-inputs",
        (0, 1),
        "dist.all_gather(g, loss.reshape(1))",
        "for k in range(",
        kind="proven",
    ),
    _story(_W0, "slow_save", "slow-rank0-work", (0,), 'a.fault == "slow_save"', kind="suspected"),
    # GAN diffusion with loader workers. A stuck loader is seen where the training waits and in the loader itself.
    _story(_W1, "slow_first_batch", "dataloader-hang", (0,), 'a.fault == "slow_first_batch"', _LOADER[0]),
    _story(
        _W1,
        "slow_first_batch",
        "dataloader-hang",
        (0,),
        'a.fault == "slow_first_batch"',
        _LOADER[0],
        options=("--r1-ddp", "1"),
    ),
    _story(
        _W1,
        "slow_spawn",
        "dataloader-hang",
        (0,),
        'a.fault == "slow_spawn"',
        *_LOADER,
        options=("--mp", "spawn"),
        stall_after_s=8,
    ),
    _story(_W1, "item_hang", "dataloader-hang", (1,), 'a.fault == "item_hang"', *_LOADER, kind="suspected"),
    _story(
        _W1,
        "item_hang",
        "dataloader-hang",
        (1,),
        'a.fault == "item_hang"',
        *_LOADER,
        options=("--dl-timeout", "2"),
        **_SLEEPS,
    ),
    # The loop over the loader that reports the death, and the hook that ends the worker.
    _story(_W1, "worker_dies", "user-exception", (1,), "in vl:", 'a.fault == "worker_dies"', **_SLEEPS),
    _story(_W1, "fd_limit", "fd-exhaustion", (1,), *_LOADER, **_SLEEPS),
    _story(_W1, "rank_raises", "user-exception", (1,), 'a.fault == "rank_raises"', **_SLEEPS),
    _story(_W1, "nan_skip", "code-divergence", (2,), "if torch.isfinite(loss)", outcome="crash"),  # SIGABRT of rank 1
    _story(
        _W1, "rank0_sample_ddp", "code-divergence", (0,), 'g1 if a.fault != "rank0_sample_ddp" else d', kind="proven"
    ),
    _story(
        _W1, "none", "user-exception", EVERY_RANK, "if torch.isfinite(loss)", options=("--retain-graph", "0"), **_SLEEPS
    ),
    # Asynchronous reinforcement learning
    _story(_W2, "race", "collective-order-race", (0,), "r = getattr(ln, method)(*args)", kind="proven", is_race=True),
    _story(_W2, "gen_stuck", "rank-stuck-in-user-code", (3,), 'a.fault == "gen_stuck"', kind="suspected"),
    _story(_W2, "gen_dies", "rank-exited-early", (3,), 'a.fault == "gen_dies"', outcome="crash"),
    # Where the generator waits, the broadcast that it skipped, and the condition that made it skip.
    _story(
        _W2,
        "gen_drops_param",
        "code-divergence",
        (3,),
        "def get(s)",
        "m = inbox.get()",
        'a.fault == "gen_drops_param"',
        "dist.broadcast(t, src=0, group=wg)",
    ),
    # The collective behind the loop that ended too early, and the loop.
    _story(
        _W2,
        "pack_uneven",
        "uneven-inputs",
        (2,),
        "dist.all_reduce(m, group=s.lg)",
        "in enumerate(batches)",
        kind="proven",
    ),
    # Every learner has the thread; which of them comes first is chance.
    _story(
        _W2,
        "async_metric",
        "collective-order-race",
        (0, 1, 2),
        'a.fault == "async_metric"',
        kind="proven",
        some_culprits=True,
    ),
    _story(_W2, "learner_raises", "user-exception", (1,), 'a.fault == "learner_raises"', outcome="crash"),
    # Re-identification with a memory bank
    # The call that raises in the next iteration, and the expression that leaves the mask out.
    _story(
        _W3,
        "unused_mask",
        "unused-parameters",
        (2,),
        "r = s.net(x, with_mask",
        "if with_mask else None",
        outcome="crash",
    ),
    # A swallowed exception: where it was raised, the call that was left out, the handler that went on.
    _story(
        _W3,
        "unused_mask",
        "code-divergence",
        (2,),
        "r = s.net(x, with_mask",
        "if with_mask else None",
        "try: loss = s.step(ep, it)",
        "Error in train_step iteration",
        options=_SWALLOW,
        kind="proven",
    ),
    _story(_W3, "bad_batch", "user-exception", (1,), 'a.fault == "bad_batch"', outcome="crash"),
    _story(
        _W3,
        "bad_batch",
        "code-divergence",
        (1,),
        'a.fault == "bad_batch"',
        "try: loss = s.step(ep, it)",
        "Error in train_step iteration",
        options=_SWALLOW,
        kind="proven",
    ),
    # Where the exception was raised, and the barrier in the handler that hides it.
    _story(
        _W3,
        "bad_batch",
        "user-exception",
        (1,),
        'a.fault == "bad_batch"',
        'if a.mitigate == "barrier_in_except"',
        options=_BARRIER,
        kind="proven",
    ),
    _story(_W3, "nan_loss", "code-divergence", (1,), "if loss > 0:", kind="proven"),
    # The gather of features of unequal length, and the line that cuts them.
    _story(
        _W3,
        "uneven_feats",
        "size-mismatch",
        (3,),
        "dist.all_gather(out, x)",
        "sync(); f = torch.cat(feats)",
        outcome="crash",  # SIGABRT of rank 3
    ),
    _story(_W3, "rank_workdir", "code-divergence", (0,), "if os.path.isfile(s.ck)", kind="proven"),
    _story(_W3, "rank0_extra_forward", "code-divergence", (0,), 'a.fault == "rank0_extra_forward"', kind="proven"),
    _story(_W3, "slow_rank0_eval", "slow-rank0-work", (0,), 'a.fault == "slow_rank0_eval"', kind="suspected"),
    # Base training without DDP
    # The generator that yields nothing for ever; the stack is taken in it or in the function that it calls.
    _story(
        _W4,
        "val_row_groups",
        "dataloader-hang",
        (3,),
        "def shards(split)",
        "rg = 8 if split",
        "return [[[f",
        "for sh in shards(split)",
        "g = rank",
        "while g < len(sh)",
        kind="suspected",
    ),
    # The evaluation that rank 2 goes to, the iterator that ended, and its handler.
    _story(
        _W4,
        "data_exhausted",
        "uneven-inputs",
        (2,),
        "v = bpb(model, rank, world)",
        "try: x, y = next(tl)",
        "except StopIteration",
        options=("--steps", "14"),
        outcome="crash",  # SIGABRT of rank 2
    ),
    _story(_W4, "ckpt_dir", "filesystem-race", (1, 2, 3), 'torch.save({"rank": rank}', outcome="crash"),
    _story(_W4, "rank0_core", "code-divergence", (0,), 'a.fault != "rank0_core"', kind="proven"),
    _story(_W4, "inf_skip", "code-divergence", (1,), "if not bad: opt.step()", outcome="crash"),  # SIGABRT of rank 1
    # The first collective whose sizes differ, and the model that is of another size.
    _story(
        _W4, "vocab_mismatch", "size-mismatch", (1,), "for p in s.large:", "model = GPT(VOCAB", outcome="crash"
    ),  # SIGABRT of rank 0
    _story(_W4, "oom_rank0", "gpu-oom", (0,), 'a.fault == "oom_rank0"', outcome="crash"),
    _story(
        _W4,
        "slow_tokenizer",
        "straggler",
        (3,),
        'a.fault == "slow_tokenizer"',
        outcome="straggler",
        location="optional",
    ),
]


def healthy(name: str, **more: object) -> Case:
    return Case(name, f"programs/{name}.py", outcome="clean", abort_after_s=60, **more)  # type: ignore[arg-type]


def _control(story: str, *args: str) -> Case:
    name = "-".join([story.split("_")[0], *(a.strip("-") for a in args)]) or story
    return Case(name, f"stories/{story}.py", ("--pg-timeout", "60", *args), outcome="clean", abort_after_s=60)


HEALTHY = [
    # Impatient on purpose: a pause of twice the limit, at the same place on all ranks, is no hang.
    healthy("long_equal_pause"),
    healthy("mild_straggler"),
    healthy("groups_with_different_call_rates"),
    healthy("wrapped_ring", environment={"TORCH_FR_BUFFER_SIZE": "400", "TORCH_NCCL_TRACE_BUFFER_SIZE": "400"}),
    healthy("pipeline_send_recv"),
    healthy("receives_posted_early", ranks=3),
    healthy("long_first_step"),
    healthy("uneven_with_join"),
    healthy("own_evaluation"),
    healthy("takes_turns"),
    healthy("ends_while_polled"),
    healthy("answered_by_a_thread"),
    healthy("ddp_with_workers"),
    healthy("expand"),
    replace(_restarted("recovers", "--own-stores"), outcome="clean", abort_after_s=60),
    healthy("much_that_is_noted"),
    _control(_W0),
    _control(_W0, "--fault", "dynlen"),
    _control(_W0, "--combine", "repeat"),
    _control(_W1),
    _control(_W1, "--prebroadcast", "0"),
    _control(_W2),
    _control(_W2, "--fault", "b_zero"),
    _control(_W3),
    _control(_W3, "--fault", "unused_mask", "--find-unused", "1"),
    _control(_W4),
]

TORCHRUN = [
    # Each rank costs two seconds of CPU time.
    _hang("conditional_collective", "code-divergence", (0,), "proven", launcher="torchrun", ranks=3),
    _crash("user_exception", "user-exception", (2,), launcher="torchrun", ranks=3),
    healthy("mild_straggler", launcher="torchrun", ranks=2),
]
