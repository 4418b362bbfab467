"""The cases of p2p-acs-iommu."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_DIRECT = "node-a:41:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n^C\n"
_TABLE = "P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU     0      1\n     0   4.95 {0}\n     1 {0}   2.08\n"
_WITHOUT = "$ NCCL_P2P_DISABLE=1 vllm serve m --tensor-parallel-size 2\n"

_FIRST = "".join(
    f"[rank{r}]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=BROADCAST, NumelIn=205783040, NumelOut=205783040, Timeout(ms)=600000) ran for 600023 milliseconds before timing out.\n"
    for r in range(2)
)


_FAULT = "[1118468.8] nvidia 0000:0a:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000f address=0x00000000ea13a000 flags=0x0020]\n"
_STEPS = "".join(f"Epoch: [0][{n}/2503]\tTime 0.4 (0.4)\tData 0.0 (0.0)\tLoss 7.0{n} (7.01)\n" for n in range(3))

CASES = {
    "p2p-acs-iommu": (
        Fires(log_case(_STEPS + _FAULT * 3), ()),
        Fires(
            log_case(
                "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0035 address=0xf1000000 flags=0x0030]\n"
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600023 milliseconds before "
                "timing out.\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank0]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                "milliseconds before timing out.\n"
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                "milliseconds before timing out.\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "[rank1]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600023 milliseconds before timing "
                "out.\n"
            ),
            "a barrier waits for a rank that is late",
        ),
        Quiet(
            log_case(
                "".join(
                    f"[rank{r}]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: "
                    "WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                    "milliseconds before timing out.\n"
                    for r in (1, 2, 3)
                )
            ),
            "rank 0 did not time out: it may still be at work",
        ),
        Quiet(
            log_case(
                "(W pid=7) [Gloo] Rank 0 is connected to 15 peer ranks. Expected number of connected peer ranks is : 15\n"
                "(W pid=9, ip=10.6.4.9) [Gloo] Rank 8 is connected to 15 peer ranks. Expected number of connected peer ranks is : 15\n"
                "(W pid=9, ip=10.6.4.9) [rank8]:[E913 22:30:08.1 ProcessGroupNCCL.cpp:632] [Rank 8] Watchdog caught collective operation "
                "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=233373696, NumelOut=233373696, Timeout(ms)=600000) ran for 600023 "
                "milliseconds before timing out.\n"
            ),
            "the ranks are on several nodes",
        ),
        Quiet(
            log_case(
                'node:9:9 [0] /rccl/src/init.cc:283 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
                "instablity or hang!\nepoch 1 done\n"
            ),
            "a warning of a job that works",
        ),
        Fires(
            log_case(
                "$ vllm serve m --tensor-parallel-size 2\n"
                + _DIRECT
                + _WITHOUT.replace("\n", " 2>&1 | tail -n 2\n")
                + "INFO:     Application startup complete.\n"
            ),
            (),
        ),
        Fires(log_case(_DIRECT + _WITHOUT + "INFO:     Application startup complete.\n"), ()),
        Quiet(
            log_case(_DIRECT + "step 7 loss 0.4\n" + _WITHOUT + "step 7 loss 0.4\n"), "the first start moved as well"
        ),
        Quiet(log_case(_DIRECT + _WITHOUT + "^C\n"), "without P2P it does not run either"),
        Quiet(log_case(_TABLE.format("2.11")), "the copies take microseconds"),
        Fires(log_case(_TABLE.format("49206.66")), ()),
        Fires(log_case(_FIRST), ()),
        Quiet(
            log_case("step 1: loss 0.4 lr 5e-07\n" + _FIRST),
            "the first call of a later group: the devices have exchanged data before",
        ),
        Quiet(log_case(_STEPS + _FAULT.replace("nvidia", "xhci_hcd") * 3), "another device than a GPU"),
    ),
}
