"""From what a user sees to the rules that may explain it: questions as data, answers that lead on or to rules.

When a job stops says little about why (the data may stop it at the start, the code at any step), so the branches by time meet
again in the question that decides: where is each rank? An answer names causes, and with them all rules of these causes, those
that are written later among them; a rule is named by its id where a symptom of its own tells it from others of its cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from unhang.model import CAUSES
from unhang.rules.base import Rule
from unhang.rules.registry import all_rules

FIRST = "job"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user may see. It leads to the question `then`, or to the rules of `causes` and `rules`."""

    text: str
    then: str = ""
    causes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a user can answer from what he sees. `hint`: how to find it out."""

    id: str
    text: str
    answers: tuple[Answer, ...]
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Causes of one kind; all causes together are in the sections."""

    letter: str
    title: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a rule says of itself."""

    id: str
    cause: str
    summary: str
    sections: Mapping[str, str]


def _question(name: str, text: str, *answers: Answer, hint: str = "") -> Question:
    return Question(name, text, answers, hint)


def _to(text: str, then: str) -> Answer:
    return Answer(text, then=then)


def _is(text: str, *causes: str, rules: tuple[str, ...] = ()) -> Answer:
    return Answer(text, causes=causes, rules=rules)


_SECTIONS = (
    Section(
        "A",
        "The ranks' programs disagree",
        (
            *("code-divergence", "uneven-inputs", "size-mismatch", "collective-order-race", "slow-rank0-work"),
            *("unused-parameters", "rank-stuck-in-user-code", "dataloader-hang"),
        ),
    ),
    Section(
        "B",
        "A rank died or failed first, and the timeouts elsewhere follow from it",
        (
            *("user-exception", "gpu-oom", "cuda-kernel-error", "host-oom", "rank-exited-early"),
            *("rank-crashed-earlier", "rank-frozen", "external-signal"),
        ),
    ),
    Section(
        "C",
        "The job does not start rightly",
        (
            *("device-mapping", "gpu-visibility-isolation", "port-in-use", "rendezvous-endpoint"),
            *("rendezvous-incomplete", "launcher-misuse", "stale-store", "version-mismatch", "misconfigured-env"),
            "filesystem-race",
        ),
    ),
    Section(
        "D",
        "Network, node or device",
        (
            *("network-interface", "network-unstable", "ib-roce-config", "ib-link", "memlock-limit", "p2p-acs-iommu"),
            *("fabric-manager", "driver-bug", "gpu-hardware", "shm-too-small", "fd-exhaustion", "straggler"),
            "nccl-or-library-bug",
        ),
    ),
    Section("E", "Wrong without a hang", ("silent-desync", "not-learning", "slow-steps", "shutdown-hang")),
)
_PLACED = {cause for section in _SECTIONS for cause in section.causes}
SECTIONS = (*_SECTIONS, Section("F", "Nothing is established yet", tuple(c for c in CAUSES if c not in _PLACED)))

_QUESTIONS = (
    _question(
        FIRST,
        "What does the job do?",
        _to("It stops before its first step.", "start"),
        _to("It stops at the same step each time, at an evaluation or a checkpoint, or when an epoch ends.", "step"),
        _to("It stops at another step each time.", "ranks"),
        _to("It does not stop, but something is wrong: slow, not learning, or it does not end.", "wrong"),
        _to("It prints an error message.", "message"),
        _to("None of this fits: show all known causes.", "all"),
    ),
    _question(
        "start",
        "What have the ranks printed when it stops?",
        _to("An error or a warning.", "message"),
        _to("Nothing comes from some ranks or nodes, or the launcher still waits for them.", "missing"),
        _to("Every rank came up; the first collective, DDP(model) or a new group does not return.", "first-call"),
        _is(
            "One rank, usually 0, still downloads, tokenises, compiles, or starts the workers of its loader.",
            *("slow-rank0-work", "dataloader-hang", "filesystem-race"),
        ),
        hint="torchrun passes the ranks' output through; --redirects and --tee change that. Let every rank print its number.",
    ),
    _question(
        "missing",
        "What about those that are missing?",
        _is("They started, and cannot reach the master: refused, timed out, unknown host.", "rendezvous-endpoint"),
        _is("The port is taken: 'Address already in use'.", "port-in-use"),
        _is(
            "They never started, or the launchers were given other numbers of nodes and processes.",
            *("rendezvous-incomplete", "launcher-misuse"),
        ),
        _is("The first start worked, a restart does not; or ranks talk to an earlier run.", "stale-store"),
        _to("They ended at once.", "gone"),
    ),
    _question(
        "first-call",
        "Which of these is true?",
        _is(
            "It needs one node only, and the devices are busy at 100 % without any progress.",
            *("p2p-acs-iommu", "fabric-manager", "driver-bug"),
        ),
        _is(
            "It needs two nodes or more; each node alone works.",
            *("network-interface", "ib-roce-config", "memlock-limit", "misconfigured-env"),
        ),
        _is(
            "Two ranks show up on one device, or a rank on a device that is not its own.",
            *("device-mapping", "gpu-visibility-isolation"),
        ),
        _is("The nodes run other images, or other versions of torch or NCCL.", "version-mismatch"),
        Answer(
            "It is in new_group, init_device_mesh, or a wait for a store.",
            rules=("subgroup-not-created-by-all", "waits-for-store"),
        ),
        _to("None of these, or one rank is not in that call at all.", "ranks"),
        hint="nvidia-smi shows which process is on which device, and how busy it is.",
    ),
    _question(
        "step",
        "What is special about that step?",
        _is("It is the end of an epoch, or of the data.", "uneven-inputs"),
        _is(
            "Rank 0 alone does something there: save, evaluate, log, merge, generate.",
            *("slow-rank0-work", "filesystem-race"),
            rules=("rank-dependent-collective",),
        ),
        _is("Another branch of the code is taken there, on some ranks or on some data.", "code-divergence"),
        _is("The batches have another shape there.", "size-mismatch"),
        _is("The training is over.", "shutdown-hang"),
        _to("Nothing that I know of.", "ranks"),
    ),
    _question(
        "ranks",
        "Where is each rank when nothing moves?",
        _to("The process of a rank is gone.", "gone"),
        _to("One rank (or a few) is not in a collective call, the others wait in one.", "elsewhere"),
        _to("The ranks are in different collective calls, in other lines, or with other sizes.", "disagree"),
        _to("All ranks are in the same call, with the same sizes.", "same-call"),
        _is("I cannot tell.", "unknown"),
        hint="This is the question that decides. 'unhang run' answers it; by hand, 'py-spy dump --pid PID' of every rank.",
    ),
    _question(
        "elsewhere",
        "What does that rank do?",
        _is(
            "It waits for its data loader: an iterator, a worker, a queue.",
            *("dataloader-hang", "fd-exhaustion", "shm-too-small"),
        ),
        _is("It works alone: saves, evaluates, tokenises, merges.", "slow-rank0-work"),
        _is("It waits for a lock, a thread, a queue or an event of the program, or loops.", "rank-stuck-in-user-code"),
        _is("It looks for a file or folder, or waits for one.", "filesystem-race"),
        _is("It is at the end of its loop: its batches are used up.", "uneven-inputs"),
        Answer("It caught an exception, and went on alone.", rules=("swallowed-exception",)),
        _is("It does not run at all: ps shows T (stopped) or D (in the kernel).", "rank-frozen"),
        _is("It is at the end of the program; all work is done.", "shutdown-hang"),
        Answer("No stack of it could be taken.", rules=("never-issued", "no-dump")),
    ),
    _question(
        "disagree",
        "In what do they differ?",
        _is("One is in another branch of the code: an if on the rank, on data, on an error.", "code-divergence"),
        _is("The call is the same, the sizes or dtypes are not.", "size-mismatch"),
        _is(
            "The calls are the same, their order is not: threads, two groups, send and receive.",
            "collective-order-race",
        ),
        _is("One is a whole iteration behind, near the end of the data.", "uneven-inputs"),
        Answer(
            "A send or receive has no counterpart, or names the wrong rank.",
            rules=("wrong-peer", "new-partner", "transfer-mismatch"),
        ),
        Answer("Some are in new_group or init_device_mesh.", rules=("subgroup-not-created-by-all", "waits-for-store")),
        _is("They are in the gradient buckets of DDP, not all of the same one.", "unused-parameters"),
    ),
    _question(
        "gone",
        "How did it end, first in time?",
        _is("With a Python traceback.", "user-exception"),
        _is("Out of memory on the device.", "gpu-oom"),
        _is("With a CUDA error: an assertion, an illegal access.", "cuda-kernel-error"),
        _is("Killed: exit code -9 or 137.", "host-oom"),
        _is("By another signal (-6, -7, -11), without a message.", "rank-crashed-earlier", "shm-too-small"),
        _is("With exit code 0, or by sys.exit.", "rank-exited-early"),
        _is("All were ended at once: a time limit, scancel, a closed terminal.", "external-signal"),
        _is("Nobody knows.", "rank-crashed-earlier"),
        hint="Sort by time. The rank that torchrun calls the root cause is the first that died, often one that only waited.",
    ),
    _question(
        "same-call",
        "What do the devices and the network say?",
        _is("The kernel log shows Xid or ECC errors.", "gpu-hardware", "driver-bug"),
        _is("A port of InfiniBand was down, or a completion failed.", "ib-link", "ib-roce-config"),
        _is("Connections between nodes are lost or very slow.", "network-unstable", "network-interface"),
        _is(
            "Only devices of one node are involved, in a machine with IOMMU or ACS.", "p2p-acs-iommu", "fabric-manager"
        ),
        _is("It goes on after a while, and the same rank is last each time.", "straggler"),
        Answer("Nothing at all.", causes=("nccl-or-library-bug",), rules=("not-completed",)),
        hint="dmesg -T | grep -iE 'xid|aer|mlx5|oom'; nvidia-smi -q; ibstat. Change one setting at a time, and change it back.",
    ),
    _question(
        "wrong",
        "What is wrong?",
        _is("It is slow: a rank is late again and again.", "straggler"),
        _is("It is slow: every step takes long, on all ranks.", "slow-steps"),
        _is("Losses or weights differ between ranks that should agree.", "silent-desync"),
        _is("It learns nothing: loss scale 0, skipped steps, NaN, a loss that does not move.", "not-learning"),
        Answer("A rank printed an exception, and the job went on.", rules=("swallowed-exception",)),
        _is("All work is done, and the process does not end.", "shutdown-hang"),
    ),
    _question(
        "message",
        "Which message is the first in time, over all ranks?",
        _to("A timeout, 'Connection closed by peer', 'remote process exited': a rank that waited says so.", "ranks"),
        _is("A Python traceback from the training script.", "user-exception"),
        _is("'CUDA out of memory'.", "gpu-oom"),
        _is("'CUDA error': device-side assert, illegal memory access.", "cuda-kernel-error"),
        _is("'Killed', 'oom-kill', exit code -9 or 137.", "host-oom"),
        _is("'Received signal', 'CANCELLED', 'death signal'.", "external-signal"),
        _is("'Expected to have finished reduction in the prior iteration'.", "unused-parameters"),
        _is("Shapes or collectives do not match between ranks.", "size-mismatch", "code-divergence"),
        _is("'Address already in use'.", "port-in-use"),
        _is("The master cannot be reached, or not all members came.", "rendezvous-endpoint", "rendezvous-incomplete"),
        _is("'Duplicate GPU', 'invalid device ordinal', peer access.", "device-mapping", "gpu-visibility-isolation"),
        _is("'Too many open files'.", "fd-exhaustion"),
        _is("'Bus error', 'No space left on device', /dev/shm.", "shm-too-small"),
        _is("A file or folder is missing, or exists already.", "filesystem-race"),
        _is("NET/IB, ibv_, RoCE, memory registration.", *("ib-roce-config", "ib-link", "memlock-limit")),
        _is("NET/Socket, connection reset, no route to host.", "network-interface", "network-unstable"),
        _is("Xid, ECC, fallen off the bus, fabric.", "gpu-hardware", "driver-bug", "fabric-manager"),
        _is(
            "Versions, an internal error of NCCL, a symbol that is missing.",
            *("version-mismatch", "nccl-or-library-bug"),
        ),
        _is("A variable or an option of the launcher is wrong.", "misconfigured-env", "launcher-misuse"),
        _to("Another one.", "all"),
        hint="'unhang explain FILE' names every line of a log that it knows; 'unhang diagnose FILE' weighs them.",
    ),
    _question(
        "all", "What kind of failure is it?", *(_is(f"{section.title}.", *section.causes) for section in SECTIONS)
    ),
)
QUESTIONS: Mapping[str, Question] = {question.id: question for question in _QUESTIONS}


@cache
def rules_by_id() -> Mapping[str, Rule]:
    """Every rule by its id."""
    return {rule.id: rule for rule in all_rules()}


@cache
def rules_of(cause: str) -> tuple[Rule, ...]:
    """The rules of a cause, ordered by id."""
    return tuple(rule for rule in all_rules() if rule.cause == cause)


def leaves(question: Question, answer: Answer) -> tuple[Rule, ...]:
    """The rules that an answer leads to: the named ones, and those of its causes that no other answer here names."""
    named = [rules_by_id()[rule_id] for rule_id in answer.rules if rule_id in rules_by_id()]
    elsewhere = {rule_id for other in question.answers if other is not answer for rule_id in other.rules}
    by_cause = [rule for cause in answer.causes for rule in rules_of(cause) if rule.id not in elsewhere]
    return tuple(dict.fromkeys([*named, *by_cause]))


def without_rule(answer: Answer) -> tuple[str, ...]:
    """The causes of an answer that no rule judges."""
    return tuple(cause for cause in answer.causes if not rules_of(cause))


def walk() -> Iterator[tuple[Question, Answer]]:
    """Every answer of every question that the first question leads to, each question once."""
    pending, seen = [FIRST], {FIRST}
    while pending:
        question = QUESTIONS[pending.pop(0)]
        for answer in question.answers:
            yield question, answer
            if answer.then and answer.then not in seen:
                seen.add(answer.then)
                pending.append(answer.then)


def questions_in_order() -> tuple[Question, ...]:
    """The questions, each once, in the order in which the tree leads to them."""
    return tuple(dict.fromkeys(question for question, _ in walk()))


def section_of(cause: str) -> Section:
    """The section that a cause belongs to."""
    return next(section for section in SECTIONS if cause in section.causes)


def explanation(rule: Rule) -> Explanation:
    """What the card of a rule explains."""
    card = rule.card
    return Explanation(rule.id, card.cause, " ".join(card.what.split()), card.sections)


def command_for(rule: Rule, available: Collection[str]) -> str:
    """What to type to have this rule judge. `available`: the commands that there are."""
    if rule.cause == "misconfigured-env" and "env" in available:
        return "unhang env"
    if rule.reads and "check" in available:
        return "unhang check"
    if rule.card.from_log and not rule.needs:
        return "unhang diagnose LOG..."
    return "unhang run -- COMMAND..."
