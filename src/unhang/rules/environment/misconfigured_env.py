"""Rule: environment variables break the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule

# What the two ends of a connection must agree on: it decides into which pieces a message is cut.
MUST_AGREE = frozenset(
    {
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
        "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL", "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS", "NCCL_CHUNK_SIZE",
    }
)  # fmt: skip
_DECIDING = (
    "environment.refused", "environment.no_algorithm", "environment.unknown_word", "environment.bad_address",
    "environment.no_network", "environment.no_plugin",
)  # fmt: skip
_CERTAINTY = {
    "environment.refused": 0.96,
    "environment.no_algorithm": 0.96,
    "environment.unknown_word": 0.95,
    "environment.bad_address": 0.95,
    "environment.no_network": 0.9,
    "environment.no_plugin": 0.75,
    "environment.nccl_set": 0.92,
    "environment.sizes_differ": 0.68,
}
_DIFFER = "environment.sizes_differ"
_PROGRAM_DIFFERS = ("fingerprint.mismatch", "fingerprint.nccl")
_IB = (
    "node-10:7400142:2256837 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective mismatch "
    "error, local size 496640 remote size 65536\n"
)
_SOCKET = (
    "node-0:41:77 [1] transport/net_socket.cc:484 NCCL WARN NET/Socket : peer 10.0.0.6<58683> message truncated : receiving 262144 bytes "
    "instead of 65536. If you believe your socket network is in healthy state, there may be a mismatch in collective sizes or environment "
    "settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks\n"
)
_UNEQUAL = (
    "node-0:41:41 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
    "node-1:57:57 [0] NCCL INFO NCCL_PROTO set by environment to Simple\n"
)


class MisconfiguredEnv(LineRule):
    """An environment variable has a value that breaks the job, or the nodes have different ones.

    What it detects:
        torch refuses a value ("Invalid value for environment variable"), NCCL has no algorithm or network of the name that it was
        told, or two ends of a connection cut one message into pieces of different size ("collective mismatch error", "message
        truncated"), which is what settings that differ between nodes do.

    Why it hangs:
        NCCL reads its settings on every rank for itself and does not compare them. Ends that disagree on protocol, algorithm or
        buffer size wait for data of another size.

    How to confirm:
        NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV prints on every rank what is set by the environment; compare the nodes. Also compare
        /etc/nccl.conf and ~/.nccl.conf. `unhang env` judges the script.

    How to fix:
        The same NCCL_ variables and the same NCCL on all nodes, set in one place by the launcher. If they are equal, look for a
        collective with tensors of different size.

    Sources:
        NVIDIA/nccl issues 969 and 1328, pull request 605; NCCL user guide, Environment Variables.
    """

    id = "misconfigured-env"
    cause = "misconfigured-env"
    kinds = (*_DECIDING, _DIFFER)
    EXAMPLES: ClassVar = (
        Fires(log_case(_IB), ()),
        Fires(log_case(_UNEQUAL + _SOCKET), ()),
        Fires(
            log_case("[rank3]: RuntimeError: Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT\n"), (3,)
        ),
        Fires(
            log_case(
                "node-0:41:77 [1] enqueue.cc:1879 NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype "
                "ncclInt8. NCCL_ALGO was set to Tree.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "node-0:41:77 [1] NCCL INFO NCCL_NET set by environment to AWS Libfabric\n"
                "node-0:41:77 [1] net.cc:209 NCCL WARN Error: network AWS Libfabric not found.\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-0:41:77 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n+ export NCCL_TIMEOUT=3600\n"
            ),
            "settings that are only useless or slow explain no hang",
        ),
        Quiet(
            log_case(
                "node-0:41:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
                "node-1:41:77 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens3\n"
            ),
            "interfaces may be named differently on different nodes",
        ),
        Quiet(
            log_case(
                "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
                "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float), but Rank 1 is running collective: "
                "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[9], TensorDtypes=Float)\n" + _IB
            ),
            "the program itself is told to call with different sizes",
        ),
        Quiet(
            log_case(
                "[W Utils.hpp:133] Warning: Environment variable NCCL_BLOCKING_WAIT is deprecated; use TORCH_NCCL_BLOCKING_WAIT instead\n"
            ),
            "an old name still works",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The deciding lines; else pieces of different size, with the settings that differ."""
        deciding = s.events.of(*_DECIDING)
        if deciding:
            return [e for e in deciding if e.kind == deciding[0].kind]
        differ = s.events.of(_DIFFER)
        if not differ or s.events.has(*_PROGRAM_DIFFERS):
            return ()
        return [*unequal(s), *differ]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Ranks that were refused; both ends of a connection are equally to blame."""
        return super().culprits(s, events) if events[0].kind == "environment.refused" else ()

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """The variable and its value, where a line tells it."""
        first = events[0]
        match first.kind:
            case "environment.refused":
                return f"{first['name']} has a value that torch does not take"
            case "environment.no_algorithm":
                return f"{first['name']}={first['value']} leaves {first['function']} without an algorithm"
            case "environment.unknown_word":
                return f"NCCL_ALGO or NCCL_PROTO is set to {first['value']!r}, and NCCL knows no {first['word']!r}"
            case "environment.bad_address":
                value = f"={first['value']}" if first["value"] else ""
                return f"NCCL_COMM_ID{value} is no address that this node can resolve"
            case "environment.no_network":
                return f"NCCL was told to use the network {first['value']}, which is not there"
            case "environment.no_plugin":
                told = next((e for e in s.events.of("environment.nccl_set") if e["name"].startswith("NCCL_NET")), None)
                return (
                    f"NCCL finds no network that fits {told['name']}={told['value']}"
                    if told
                    else "NCCL finds none of the networks that it may use"
                )
            case "environment.nccl_set":
                return f"{first['name']} differs between nodes: {' and '.join(_values(events, first['name']))}"
        sizes = f"{first['local']} and {first['remote']} bytes"
        return (
            f"two ranks cut a message into different pieces ({sizes}): NCCL settings or versions differ between nodes"
        )

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why the lines mean that."""
        return _BECAUSE.get(events[0].kind, _PIECES) + (_DOUBT if events[0].kind == _DIFFER else "")

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Lines that name the variable are near certain; sizes alone are an inference."""
        found = _CERTAINTY[events[0].kind]
        told = any(e["name"].startswith("NCCL_NET") for e in s.events.of("environment.nccl_set"))
        return 0.9 if events[0].kind == "environment.no_plugin" and told else found

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _ADVICE.get(events[0].kind, _SAME_EVERYWHERE)


def unequal(s: Situation) -> list[LogEvent]:
    """The lines of the first setting that must agree and does not, one line for each value."""
    by_name: dict[str, dict[str, LogEvent]] = {}
    for event in s.events.of("environment.nccl_set"):
        if event["name"] in MUST_AGREE and event["node"]:
            by_name.setdefault(event["name"], {}).setdefault(_same(event["value"]), event)
    for values in by_name.values():
        if len(values) > 1 and len({e["node"] for e in values.values()}) > 1:
            return list(values.values())
    return []


def _same(value: str) -> str:
    """Two spellings of one value are one value."""
    from unhang.analyze.env_values import number  # with it come the tables of all variables

    found = number(value)
    return str(found) if found is not None and value.strip().isdecimal() else value.strip().lower()


def _values(events: Sequence[LogEvent], name: str) -> Mapping[str, None]:
    return {f"{e['value']} on {e['node']}": None for e in events if e["name"] == name}


_SAME_EVERYWHERE = (
    Fix(
        "See what every node has",
        command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV,INIT <the same command>; grep -h 'set by environment\\|NCCL version' on all nodes",
        verify="the same variables, values and NCCL version on every node",
        undo="unset NCCL_DEBUG NCCL_DEBUG_SUBSYS",
    ),
    Fix(
        "Set NCCL variables in one place, for all nodes",
        setting="srun --export=ALL, mpirun -x NAME, or the launcher's own list; the same /etc/nccl.conf everywhere",
        verify="the mismatch does not come back in the step where it came",
        undo="restore the nodes' own settings",
    ),
)
_REFUSED = (
    Fix(
        "Give it a value that torch takes, or unset it",
        command="env | grep -E '^(TORCH_)?NCCL_'",
        verify="unhang env: no finding on it; init_process_group returns",
        undo="export the old value",
    ),
)
_ALGORITHM = (
    Fix(
        "Do not force it, or only for the collective that has it",
        setting="unset NCCL_ALGO NCCL_PROTO, or NCCL_ALGO=allreduce:tree",
        verify="the collective completes; NCCL_DEBUG=WARN prints nothing",
        undo="export the old value",
    ),
)
_NETWORK = (
    Fix(
        "Let NCCL choose the network",
        command="unset NCCL_NET",
        verify="NCCL_DEBUG=INFO: 'Using network ...' is the same on all nodes",
        undo="export NCCL_NET=<the old value>",
    ),
    Fix(
        "If it is a plug-in's: make it loadable on every node",
        command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET <the same command> 2>&1 | grep -i plugin",
        verify="the plug-in is loaded on every node",
        undo="nothing is changed",
    ),
)
_ADDRESS = (
    Fix(
        "Let torch pass the address on",
        command="unset NCCL_COMM_ID",
        verify="init_process_group returns on all ranks",
        undo="export NCCL_COMM_ID=<the old value>",
    ),
)
_ADVICE = {
    "environment.refused": _REFUSED,
    "environment.no_algorithm": _ALGORITHM,
    "environment.unknown_word": _ALGORITHM,
    "environment.bad_address": _ADDRESS,
    "environment.no_network": _NETWORK,
    "environment.no_plugin": _NETWORK,
}
_NO_FALL_BACK = "A network that NCCL_NET (or the framework, or a module of the cluster) names must be found on every rank; NCCL does not fall back to another one then."
_BECAUSE = {
    "environment.refused": "torch parses the variable when the process group is made, and raises for what is neither a number nor yes or no; an empty value is refused too.",
    "environment.no_algorithm": "Since NCCL 2.24 an algorithm or protocol that is forced for all collectives is an error in those that do not have it.",
    "environment.unknown_word": "Since NCCL 2.24 a word that is no algorithm, protocol or collective is an error.",
    "environment.bad_address": "NCCL starts its communicators at that address if the variable is set. torch passes the address on by its own store and needs none.",
    "environment.no_network": _NO_FALL_BACK,
    "environment.no_plugin": _NO_FALL_BACK
    + " A plug-in that was built for another NCCL, or is not on LD_LIBRARY_PATH, counts as not found.",
}
_PIECES = (
    "The sender's piece does not fit the receiver's. NCCL derives the pieces from its settings on each rank alone, so they "
    "differ where the settings or the versions differ. A longer timeout changes nothing."
)
_DOUBT = " No line shows the settings themselves, so a collective with different sizes is possible too."
