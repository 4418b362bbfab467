"""The cases of ib-roce-config."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_RETRIED = """\
node-b:3:5 [3] NCCL INFO Channel 03/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
node-b:3:7 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.8.31<4> with error 12, opcode 0, len 0, vendor err 129
"""

_OWN = "node-{}:3:4 [{}] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error {}\n"
_RAISED = "[rank{}]: Call to ibv_modify_qp failed with error {}\n"
_UCX = """\
[node-a:546:0:546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)
[node-a:546:0:546] ib_mlx5_log.c:139  RC QP 0xa9f wqe[0]: SEND s-e [inl len 18]
"""
_ENDS = "node-a:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 16 - Init START\n"


_CLOSED = """\
gpu-1:811:811 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.
gpu-1:811:811 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed
gpu-1:811:811 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_bond_0
gpu-1:811:811 [0] NCCL INFO NET/Socket : Using [0]bond0:200.1.93.2<0>
gpu-1:811:811 [0] NCCL INFO Using network Socket
step 10 loss 2.1
"""

CASES = {
    "ib-roce-config": (
        Fires(log_case(_RETRIED), ()),
        Quiet(log_case(_RETRIED.replace("GDRDMA\n", "GDRDMA\nstep 3 loss 0.1\n")), "the way had worked before"),
        Fires(
            log_case(
                "node-c:862:485 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n"
                "node-c:862:485 [0] proxy.cc:1519 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 2\n"
                "node-c:862:607 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-c<49657>\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "vm-14:165:607 [0] transport/net_ib.cc:73 NCCL WARN NET/IB : Got async event : GID table change\n"
                "vm-14:706:640 [0] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 32633, vendor "
                "err 129\n"
            ),
            (),
        ),
        Fires(log_case("node-a:3:4 [0] misc/socket.cc:343 NCCL WARN socketFinalizeAccept: wrong type 3 != 4\n"), ()),
        Fires(
            log_case(
                "node-a:1:2 [0] NCCL INFO Using network IB\nnode-b:3:4 [0] NCCL INFO Using network Socket\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, internal error, NCCL version 2.18.1\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-a:1:2 [0] NCCL INFO Using network IB\nnode-b:3:4 [0] NCCL INFO Using network IBext_v8\nstep 3 loss 0.1\n"
            ),
            "InfiniBand on both, and a job that works",
        ),
        Quiet(
            log_case(
                "NET/IB : Got async event : port error\nNET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\n"
            ),
            "a link that goes down is another cause",
        ),
        Quiet(
            log_case("NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249\n"),
            "flushed requests (5) follow from an earlier failure",
        ),
        Fires(log_case(_UCX), ()),
        Fires(log_case(_UCX + "[rank0] Fatal Python error: Aborted\n"), ()),
        Quiet(
            log_case(_UCX + "[rank0] Fatal Python error: Segmentation fault\n"),
            "a process that crashed by itself, whose peers get no answer",
        ),
        Fires(log_case(_CLOSED), ()),
        Quiet(
            log_case(
                _CLOSED.replace("NCCL_IB_DISABLE set by environment to 0", "NCCL_DEBUG set by environment to INFO")
            ),
            "nobody asked for the adapter that cannot be opened",
        ),
        Quiet(
            log_case(
                _CLOSED.replace("NET/Socket : Using [0]bond0:200.1.93.2<0>", "NET/IB : Using [0]mlx5_1:1/RoCE").replace(
                    "network Socket", "network IB"
                )
            ),
            "it cannot be opened, and another one is used",
        ),
        Quiet(log_case("step 3 loss 0.1\n" + _UCX), "transfers that had got their answers for some steps"),
        Fires(
            log_case(_ENDS + _OWN.format("b", 3, "No data available") + _RAISED.format(11, "No data available")), (11,)
        ),
        Fires(
            log_case(_ENDS + _OWN.format("b", 3, "Connection timed out") + _RAISED.format(11, "Connection timed out")),
            (),
        ),
    ),
}
