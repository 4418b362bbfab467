"""What the watchers of one job say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from unhang.analyze.alike import Told
from unhang.watch.exchange import VERSION
from unhang.watch.joining import Address

LEAST_PAUSE_S, USUAL_PAUSE_S, MESSAGES_PER_S, MOST_MESSAGES_PER_S = 0.25, 1.0, 1000.0, 4000.0


def pause_of(nodes: int, direct: int) -> float:
    """How often each of so many nodes speaks: four times a second, of a thousand once; `direct` ones as often as the hub can hear them."""
    return max(LEAST_PAUSE_S, min(USUAL_PAUSE_S, nodes / MESSAGES_PER_S), direct / MOST_MESSAGES_PER_S)


class RankState(msgspec.Struct, array_like=True, gc=False):
    """One process, as its own node sees it. `quiet_s`, `dead_s`: how long ago it moved, or ended; -1: it lives."""

    folder: str
    quiet_s: float
    dead_s: float = -1.0
    exit_code: int | None = None
    has_stepped: bool = False
    has_failed: bool = False


class State(msgspec.Struct, array_like=True):
    """What a node says of itself. `looked`, `still`, `secured`, `seen`: the numbers of the hub's orders that are done.

    They count for the hub with this nonce alone. `is_still`: whether nothing had moved at `still` since `looked`. `is_over`: its job has ended.
    `world`: ranks of the job, as its own ranks were told. `told`: in a job of many ranks, what `looked` showed; `sent`: files that were asked for.
    `at`: the node's own CLOCK_MONOTONIC when the quiets of `ranks` were so; how long a message took says nothing of a rank.
    """

    hub: str = ""
    ranks: list[RankState] = []
    looked: int = 0
    still: int = 0
    is_still: bool = False
    secured: int = 0
    seen: int = 0
    is_over: bool = False
    world: int = 0
    told: Told | None = None
    sent: int = 0
    at: float = 0.0


class Row(msgspec.Struct, array_like=True, gc=False):
    """All of a node that is new: its ranks' quiets have grown since, until `at` on its clock; or all are now as short as `quiet_s`, or longer.

    `looked`, `told`, `still`, `is_still`: as in its `State`, where it has looked, or been asked whether its ranks still stand.
    """

    at: float
    quiet_s: float = -1.0
    looked: int = 0
    told: Told | None = None
    still: int = 0
    is_still: bool = False


class Push(msgspec.Struct, array_like=True):
    """A message to the hub. `files`: those that changed, by path below the run directory; `gone`: those that are no more.

    `offset_ns`: what to add to this node's clock for the hub's, found in a round trip of `trip_ns`; 0 and 0 before the first.
    `group`, `rows`, `left`: what nodes say that speak through this one, and which of them have hung up.
    """

    version: int
    name: str
    host: str
    port: int
    state: State
    files: dict[str, bytes] = {}
    gone: list[str] = []
    offset_ns: int = 0
    trip_ns: int = 0
    group: dict[str, Push] = {}
    rows: dict[str, Row] = {}
    left: list[str] = []


@dataclass
class Said:
    """A message as it came, or the end of a connection (`push` None). `at`: CLOCK_MONOTONIC seconds.

    `rows`: what others say through this node, where it is nothing else. `is_direct`: by its own connection.
    """

    node: str
    address: Address
    push: Push | None
    at: float
    rows: Mapping[str, Row] = field(default_factory=dict)
    is_direct: bool = True


CRASH = "crash"  # the kind of a verdict on a job that failed, beside those on hangs
LEFT = "left"  # what a node says of its own ranks that failed while the hub, which will report, goes on


class JointVerdict(msgspec.Struct, array_like=True):
    """What the hub found, for every screen. `is_end`: the job is to be ended now."""

    number: int
    kind: str
    line: str
    report: str
    waiting: list[int]
    onset_ns: int
    is_withdrawn: bool = False
    will_end: bool = False
    is_end: bool = False


class Orders(msgspec.Struct, array_like=True):
    """The hub's answer: numbers of what is to be done, how often to speak, who follows it, where its report will be.

    `send`: in a job of many ranks, for the few nodes that are to send their files; `only`: all ranks of which files are sent.
    `via`: the node through which to speak from now on; `group`, `group_send`: who of those behind this node is to send its files.
    """

    version: int = VERSION
    hub: str = ""
    now_ns: int = 0
    pause_s: float = LEAST_PAUSE_S
    look: int = 0
    confirm: int = 0
    secure: int = 0
    verdict: JointVerdict | None = None
    successors: list[tuple[str, str, int]] = []
    needs_all: bool = False
    report: str = ""
    send: int = 0
    only: tuple[int, ...] = ()
    via: tuple[str, int] | None = None
    group: tuple[str, ...] = ()
    group_send: int = 0
