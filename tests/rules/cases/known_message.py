"""The cases of known-message."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_FAILED = "failed (exitcode: 1) local_rank: 0 (pid: 4242) of binary: /usr/bin/python\n"
_STEPS = "".join(f"[rank0]: step {n} loss: 2.{n} lr: 1e-4\n" for n in range(60))

_NO_HEAD = (
    "[2025-02-16 16:05:55,537 E 35 35] gcs_rpc_client.h:179: Failed to connect to GCS at address 172.23.15.13:20000 within 5 seconds.\n"
    "[2025-02-16 16:06:26,552 W 35 35] gcs_client.cc:178: Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting\n"
)

_SHARED_OUT = (
    "[HAMI-core ERROR (pid:565 thread=140267266266944 multiprocess_memory_limit.c:831)]: Illegal device id: 850725928\n"
)

CASES = {
    "known-message": (
        Fires(log_case(_NO_HEAD), (), cause="rendezvous-endpoint"),
        Quiet(log_case(_NO_HEAD + _STEPS), "the head answered later, and the training began"),
        Fires(log_case(_SHARED_OUT + _FAILED), (), cause="nccl-or-library-bug"),
        Quiet(log_case(_SHARED_OUT + _STEPS), "the library complained, and the training went on"),
        Quiet(
            log_case(f"RuntimeError: synStatus=26 [Generic failure] Device acquire failed.\n{_FAILED}"),
            "why is not told",
        ),
        Fires(
            log_case(
                "node-a:97:221 [1] graph/topo.cc:254 NCCL WARN TOPO/NET : Could not force merge NICs mlx5_0,mlx5_1. "
                f"Please specify a valid NCCL_NET_FORCE_MERGE string\n{_FAILED}"
            ),
            (),
            cause="misconfigured-env",
        ),
        Fires(
            log_case(
                "node-a:97:221 [0] graph/search.cc:703 NCCL WARN XML Import Channel : dev 1 not found.\n"
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system error\n"
            ),
            (),
            cause="misconfigured-env",
        ),
        Fires(
            log_case(
                "terminate called after throwing an instance of 'ccl::v1::exception'\n"
                "  what():  oneCCL: ze error at zeCommandQueueExecuteCommandLists, code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY\n"
            ),
            (),
            cause="gpu-oom",
        ),
        Fires(
            log_case(
                "[ERROR] HCCL(60570,python) [hccl_socket.cc:106] listen on ip[10.0.0.5] and specific port[16666] fail. "
                "Please check the port status and whether the port is being used by other process.\n"
                "[ERROR] HCCL(60570,python) [hccl_comm.cc:115] errNo[0x0000000005000007] hccl initialize failed\n"
            ),
            (),
            cause="port-in-use",
        ),
        Fires(
            log_case(
                "node-a:97:221 [1] NCCL WARN Connection closed by remote peer node-b<4000>\n"
                f"kernel: nf_conntrack: nf_conntrack: table full, dropping packet\n{_FAILED}"
            ),
            (),
            cause="network-unstable",
        ),
        Fires(
            log_case("slurmstepd: error: execve(): /opt/train/run.sh: Permission denied\n"),
            (),
            cause="launcher-misuse",
        ),
        Fires(
            log_case(
                "[rank3]: Traceback (most recent call last):\n"
                '[rank3]:   File "train.py", line 8, in main\n'
                "[rank3]:     load()\n"
                "[rank3]: RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server\n"
            ),
            (3,),
            cause="misconfigured-env",
        ),
        Fires(
            log_case(
                f"[rank1]: 2026-01-02 - ERROR - failed to train: World size 3 must be divisible by tp * pp\n{_FAILED}"
            ),
            (1,),
            cause="launcher-misuse",
        ),
        Quiet(
            log_case(
                f"[rank1]: 2026-01-02 - ERROR - failed to train: World size 3 must be divisible by tp * pp\n{_STEPS}{_FAILED}"
            ),
            "the training went on after it",
        ),
        Quiet(
            log_case(f"kernel: nf_conntrack: nf_conntrack: table full, dropping packet\n{_STEPS}"),
            "the training went on after it",
        ),
        Quiet(
            log_case(f"node-a:97:221 [1] NCCL WARN Connection closed by remote peer node-b<4000>\n{_FAILED}"),
            "a message that only says that a peer is gone",
        ),
        Quiet(log_case("kernel: nf_conntrack: nf_conntrack: table full, dropping packet"), "the job is not in trouble"),
    ),
}
