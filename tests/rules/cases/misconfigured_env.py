"""The cases of misconfigured-env."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

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

_SHORT = (
    "[rank3]:[E502 21:41:39.537217348 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={limit}) ran for 90 milliseconds before timing out.\n"
)

_NO_WAY = "node-1:3:4 [1] enqueue.cc:422 NCCL WARN Error : no algorithm/protocol available\n"

CASES = {
    "misconfigured-env": (
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
        Fires(
            log_case(
                "node-a:3:3 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
                "node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
            ),
            (),
        ),
        Quiet(
            log_case("node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"),
            "nothing tells that a variable named an interface",
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
        Fires(log_case(_SHORT.format(limit=1)), ()),
        Fires(
            log_case(
                "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: 10.21.4.17"
            ),
            (),
        ),
        Quiet(log_case(_SHORT.format(limit=5000)), "a limit of some seconds is one that somebody may want"),
        Fires(log_case("node-1:3:4 [1] NCCL INFO NCCL_ALGO set by environment to CollNet\n" + _NO_WAY), ()),
        Quiet(log_case(_NO_WAY), "NCCL finds no way to do a collective, and nothing tells that one was forced"),
    ),
}
