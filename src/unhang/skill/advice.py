"""Advice that goes around, and what is true of it. Figures: measured on torch 2.13.0, or from the sources of torch and NCCL."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """`heard`: what people are told. `truth`: what it does. `instead`: what to do. `experiment`: a program that shows it."""

    id: str
    heard: str
    truth: str
    instead: str
    experiment: str = ""


_EXPAND_EXPERIMENT = """python - <<'END'
import torch
x = torch.randn(1, 512, 1024)
for name, copies in (("expand", lambda p: p.expand(64, -1, -1)), ("repeat", lambda p: p.repeat(64, 1, 1))):
    p = x.clone().requires_grad_()
    y = copies(p)
    y.sin().sum().backward()
    print(name, "bytes", y.untyped_storage().nbytes(), "gradient", p.grad.double().sum().item())
END"""


def _folklore(name: str) -> str:
    """The command that runs an experiment of the source tree."""
    return f"python docs/folklore/{name}.py  # in the source tree; figures in docs/folklore/README.md"


_ALL = (
    Advice(
        "raise-the-timeout",
        "The collective timed out, so raise the timeout.",
        "It helps only where a rank legitimately works long (rank 0 saves or tokenises); every other cause fails later. The rank "
        "that timed out waited for another, and the devices of all ranks are paid for meanwhile. NCCL's limit is 10 minutes, gloo's 30.",
        "Find what the missing rank did. If it is slow rank-0 work: init_process_group(timeout=timedelta(...)) for that phase, or better let all ranks share it.",
        _folklore("longer_timeout"),
    ),
    Advice(
        "nccl-timeout",
        "Set NCCL_TIMEOUT (or TORCH_DISTRIBUTED_TIMEOUT, NCCL_LAUNCH_TIMEOUT).",
        "Neither NCCL nor torch reads such a variable: nothing changes.",
        "init_process_group(timeout=timedelta(...)), and timeout= of every new_group, which does not inherit it.",
    ),
    Advice(
        "nccl-ib-timeout",
        "Set NCCL_IB_TIMEOUT=1000 against timeouts.",
        "It is the exponent of a retry time inside InfiniBand (4.096 us x 2^n), no limit in seconds, and no limit of a collective. 0, and 32 or "
        "more, mean for ever: a link error becomes a silent hang.",
        "Leave it. Where the log shows completion errors of InfiniBand, look at the link first, then at 22 or 23.",
    ),
    Advice(
        "p2p-disable",
        "Set NCCL_P2P_DISABLE=1.",
        "It helps only where direct copies between devices are broken (IOMMU, ACS, driver), not where a rank is missing, and costs "
        "speed. Actors of Ray do not inherit it.",
        "Use it for one run, as an experiment; unset it afterwards. If it helped, mend IOMMU or ACS.",
        _folklore("p2p_ib_off"),
    ),
    Advice(
        "ib-disable",
        "Set NCCL_IB_DISABLE=1.",
        "It helps where InfiniBand is broken or works on some nodes only; all traffic between nodes goes through TCP then, which is slower.",
        "Use it for one run, as an experiment; unset it afterwards. If it helped, mend the fabric or its settings.",
        _folklore("p2p_ib_off"),
    ),
    Advice(
        "blocking-wait",
        "Set TORCH_NCCL_BLOCKING_WAIT=1 (or NCCL_BLOCKING_WAIT) to see the error.",
        "It switches asynchronous error handling and desync reports off; it is an alternative to them, no addition.",
        "Leave it unset: asynchronous error handling is on by default.",
        _folklore("blocking_wait"),
    ),
    Advice(
        "async-error-handling",
        "Set NCCL_ASYNC_ERROR_HANDLING=1 so that hangs end early.",
        "It is the old name of TORCH_NCCL_ASYNC_ERROR_HANDLING, which is on by default, and acts at the timeout, not before.",
        "unhang run ends a proven hang in seconds.",
    ),
    Advice(
        "debug-detail",
        "Set TORCH_DISTRIBUTED_DEBUG=DETAIL.",
        "On torch 2.13.0 (CPU, gloo) every rank crashed with it when DDP was built. Without DDP it names mismatches, at a cost in each call.",
        "unhang run compares the calls from the flight recorder, at about 2 us a call; INFO is harmless.",
    ),
    Advice(
        "first-to-die",
        "torchrun's 'root cause (first observed failure)' names the culprit.",
        "It names the rank that died first: in hangs that a timeout ended an innocent one in ten of ten trials. That one had waited.",
        "Sort the messages by time, and ask where each rank was: unhang diagnose.",
    ),
    Advice(
        "torchrun-hides-errors",
        "torchrun captures stderr, so errors are lost.",
        "Output passes through unless --redirects or --tee say otherwise; only the summary has no traceback without @record.",
        "Search the output above the summary; unhang run keeps each rank's first error without a change to the script.",
    ),
    Advice(
        "more-barriers",
        "Add barriers to synchronise the ranks.",
        "A barrier is a collective: a rank that does not come to it hangs it. It moves the hang, and hides where it began. Only a "
        "barrier that orders a file of rank 0 before its readers mends something.",
        "Make every rank take the same calls; look where they part: unhang run.",
        _folklore("more_barriers"),
    ),
    Advice(
        "skip-the-batch",
        "Catch the out-of-memory error (or NaN), and skip the batch.",
        "A rank that skips alone makes fewer collective calls than its peers: they hang, in another line.",
        "Decide together: all_reduce a flag (MAX), and skip on all ranks or on none.",
    ),
    Advice(
        "smaller-batch",
        "A smaller batch makes the all-reduce smaller.",
        "The gradient all-reduce has the size of the parameters, whatever the batch.",
        "A smaller batch helps against out-of-memory only.",
    ),
    Advice(
        "expand-vs-repeat",
        "expand() aliases memory and corrupts gradients, so ranks hang; use repeat().",
        "Values and gradients are the same, and collectives wait for arrival, never for values: no hang on 2 and 4 ranks, gradients bit-identical. "
        "repeat copies: 134 MB instead of 2.1 MB for 512 x 1024 numbers at batch 64, and 20 % more time.",
        "Keep expand(). Only a collective on the expanded tensor itself is dangerous: make that one contiguous().",
        _EXPAND_EXPERIMENT,
    ),
    Advice(
        "device-id",
        "device_id of init_process_group is deprecated; or: always pass it.",
        "It is current, and binds rank and device; it harms where a group is made by some ranks only. With it, groups split from the "
        "default group, and all members of that one have to take part.",
        "Pass the right device, and make every group on all ranks.",
    ),
    Advice(
        "visible-devices",
        "CUDA_VISIBLE_DEVICES conflicts with torchrun.",
        "torchrun assigns no devices; LOCAL_RANK indexes the visible list, so one list for the whole launcher is fine. One device for each rank, "
        "set inside the ranks, breaks peer-to-peer and IPC, and makes cuda:LOCAL_RANK invalid.",
        "Set it once, before torchrun; torch.cuda.set_device(LOCAL_RANK) first in the script.",
    ),
    Advice(
        "master-port",
        "Give another --master-port if the address is in use.",
        "With --standalone it is ignored: the port is chosen freely. Without, the port must be the same on all nodes.",
        "Find who holds the port (ss -ltnp); it may be another person's job.",
    ),
    Advice(
        "kill-by-name",
        "pkill -f python, killall torchrun.",
        "On a shared machine it ends the jobs of others.",
        "End processes by pid, and only those of this run. unhang run ends all that it started.",
    ),
    Advice(
        "memory-fraction",
        "Set CUDA_MEMORY_FRACTION=0.9 to balance memory.",
        "No library reads it, and a limit never balances.",
        "Find what the one rank does more (usually rank 0 loads without map_location); torch.cuda.max_memory_allocated() of each rank.",
    ),
    Advice(
        "recorder-in-bytes",
        "Set TORCH_FR_BUFFER_SIZE to a large number of bytes.",
        "It counts entries, of about 0.5 kB or more each: 67,108,864 would be 35 GB a rank, and the kernel ends the job.",
        "2000, which unhang run sets.",
    ),
    Advice(
        "nohup",
        "Start torchrun under nohup so that it survives the terminal.",
        "torchrun handles SIGHUP itself, so a closed terminal ends it all the same.",
        "tmux, or setsid with the output in a file.",
    ),
)
ADVICE: Mapping[str, Advice] = {advice.id: advice for advice in _ALL}


def advice_text(advice: Advice) -> str:
    """One piece of advice and its truth."""
    truth, instead = (textwrap.indent(textwrap.fill(text, 110), "  ") for text in (advice.truth, advice.instead))
    out = [f"{advice.id}: {advice.heard}", "", "What is true", truth, "", "Instead", instead]
    if advice.experiment:
        out += ["", "See for yourself", *(f"  {line}" for line in advice.experiment.splitlines())]
    return "\n".join(out) + "\n"


def advice_json(advice: Advice) -> dict[str, str]:
    """The same for programs."""
    return {
        "advice": advice.id,
        "heard": advice.heard,
        "truth": advice.truth,
        "instead": advice.instead,
        "experiment": advice.experiment,
    }


def advice_short() -> str:
    """All advice as a list, a line for each."""
    return "\n".join(f'- "{a.heard}" → {a.truth.split(". ")[0].rstrip(".")}. (`{a.id}`)' for a in _ALL)


def advice_page() -> str:
    """All advice as a page."""
    out = ["# Advice that goes around", "", "What people are told, what is true of it, and what to do instead."]
    for a in _ALL:
        out += ["", f"## {a.id}", "", f"- Heard: {a.heard}", f"- True: {a.truth}", f"- Instead: {a.instead}"]
        out += ["", "```", a.experiment, "```"] if a.experiment else []
    return "\n".join(out) + "\n"
