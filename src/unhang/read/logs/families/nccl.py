"""NCCL's own lines, 2.4 to 2.29, and what torch says of NCCL's results."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_ECHOES = (
    Pattern(
        "nccl.echo_peer_closed",
        r"Connection closed by (?:remote peer|localRank)(?: (?P<peer>[^\s<]+))?",
        ("Connection closed by remote peer", "Connection closed by localRank"),
        (
            "node-a:39804:66804 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-b<47494>",
            "node-a:97:221 [1] include/socket.h:416 NCCL WARN Net : Connection closed by remote peer",
        ),
    ),
    Pattern(
        "nccl.echo_proxy",
        r"Failed to execute operation \w+ from (?:local)? ?rank|Socket (?:recv|send) failed|\[Proxy [Tt]hread(?: error)?\]"
        r"|Proxy Call to rank \d+ failed|\[Service thread\] (?:\w+ failed|Error encountered|Could not)|Accept failed",
        (
            "Failed to execute operation",
            "Socket recv failed",
            "Socket send failed",
            "[Proxy thread error]",
            "[Proxy Thread]",
            "Proxy Call to rank",
            "[Service thread]",
        ),
        (
            "node-a:96882:65747 [3] proxy.cc:1519 NCCL WARN [Proxy Service 3] Failed to execute operation Setup from rank 3, "
            "retcode 1",
            "node-a:39804:66804 [0] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x3de6ef104f17",
            "worker0:15:91 [3] transport.cu:153 NCCL WARN transport.cu:153 ->2 [Proxy thread error]",
        ),
        not_examples=("the [Service thread] started",),
    ),
    Pattern(
        "nccl.echo_remote",
        r"ncclRemoteError|remote process exited or there was a network error",
        ("ncclRemoteError", "remote process exited"),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "NCCL error: remote process exited or there was a network error, NCCL version 2.20.5",
        ),
    ),
)

_RESULTS = (
    Pattern(
        "nccl.error",
        r"(?:NCCL [Ee]rror(?: in)?:|NCCL failure) .{0,400}?(?P<what>unhandled system error|unhandled cuda error|internal error"
        r"|invalid usage|invalid argument|remote process exited)(?:.{0,120}?NCCL version (?P<version>[\d.]+\d))?",
        ("NCCL error in:", "NCCL error:", "NCCL Error", "NCCL failure"),
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, "
            "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3",
            "NCCL failure common.cu:874 'unhandled system error'",
            "node-3: Test NCCL failure common.cu:908 'internal error - please report this issue to the NCCL developers / '",
        ),
        not_examples=("[W] retrying after NCCL error: none",),
        says="crash",
    ),
    Pattern(
        "nccl.result",
        r"\bnccl(?P<result>SystemError|InternalError|InvalidUsage|UnhandledCudaError|InvalidArgument|RemoteError): ",
        tuple(
            f"nccl{r}:"
            for r in (
                "SystemError",
                "InternalError",
                "InvalidUsage",
                "UnhandledCudaError",
                "InvalidArgument",
                "RemoteError",
            )
        ),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",),
        says="crash",
    ),
    Pattern(
        "nccl.cuda_failure",
        r"(?:(?P<file>[\w./]{1,80}\.(?:cc|cu|h)):\d{1,6} NCCL WARN )?Cuda failure (?:(?P<code>\d{1,4}) )?'(?P<error>[^']{1,200})'",
        ("Cuda failure",),
        (
            "node-a:43201:43201 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed in the "
            "present state'",
            "Cuda failure 217 'peer access is not supported between these two devices'",
        ),
        not_examples=("Cuda failure rate of the fleet",),
        says="crash",
    ),
    Pattern(
        "nccl.cuda_oom",
        r"(?:\[(?P<device>\d{1,3})\] [\w./]{1,80}:\d{1,6} NCCL WARN )?"
        r"(?:Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:host )?\w*alloc\w*(?: async)? \d+ bytes)",
        ("Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'", "Failed to CUDA"),
        (
            "node-d:96882:65747 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
            "node-d:96882:65747 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
            "Failed to CUDA calloc async 608 bytes",
        ),
        not_examples=("Failed to CUDA initialise",),
        says="crash",
    ),
    Pattern(
        "nccl.message_truncated",
        r"(?:peer \S+|Bootstrap :|NET/Socket :|^) ?[Mm]essage truncated ?:(?: receiv(?:ed|ing) (?P<received>\d+) bytes instead of (?P<expected>\d+))?",
        ("essage truncated",),
        (
            "NET/Socket : peer 10.0.0.2<40000> message truncated : receiving 1048576 bytes instead of 65536",
            "Message truncated : received 1024 bytes instead of 256",
            "net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.2<59210> message truncated :",
        ),
        not_examples=("log message truncated",),
        says="crash",
    ),
)

_INIT = (
    Pattern(
        "nccl.version",
        r"NCCL version (?P<version>\d+\.\d+(?:\.\d+)?)",
        ("NCCL version ",),
        ("NCCL version 2.18.3+cuda12.1",),
    ),
    Pattern(
        "nccl.init_complete",
        r"comm 0x[0-9a-f]+ rank (?P<group_rank>\d+) nranks (?P<group_size>\d+) cudaDev (?P<device>\d+).{0,120}Init COMPLETE",
        ("Init COMPLETE",),
        (
            "node-h:51592:36030 [0] NCCL INFO comm 0x55f08a1c83d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 47000 commId "
            "0xfe85a4e923026b89 - Init COMPLETE",
        ),
    ),
    Pattern(
        "nccl.channel_p2p",
        r"\[\w+\] -> \d+\[\w+\] via P2P",
        (" via P2P",),
        ("node-h:83201:63025 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC",),
        is_background=True,
    ),
    Pattern(
        "nccl.channel_net",
        r"\[\w+\] -> \d+\[\w+\] \[(?:send|receive)\] via NET/(?P<network>\w+)",
        (" via NET/",),
        ("node-h:83201:63025 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0",),
        is_background=True,
    ),
    Pattern(
        "nccl.network",
        r"(?P<node>[^\s:]{1,80}):\d{1,9}:\d{1,9} \[\d{1,4}\] NCCL INFO Using network (?P<network>\w+)",
        ("Using network ",),
        ("node-h:83201:63025 [1] NCCL INFO Using network IB", "node-i:8:9 [0] NCCL INFO Using network Socket"),
        not_examples=("Using network drive",),
    ),
    Pattern(
        "nccl.roce_device",
        r"Using \[\d+\]\S+:\d+/RoCE|\b(?:rocep|bnxt_re|irdma|mlx5_bond_)\w+:\d",
        ("/RoCE", "rocep", "bnxt_re", "irdma", "mlx5_bond_"),
        ("node-h:3:4 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",),
        not_examples=("export NCCL_IB_HCA=mlx5_bond_",),
    ),
    Pattern(
        "nccl.ib_device",
        r"Using \[\d+\]\S+:\d+/IB",
        ("/IB ", "/IB/", "/IB;", "/SHARP"),
        ("node-h:3:4 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>",),
        not_examples=("Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0",),
    ),
    Pattern(
        "nccl.nvlink_p2p_disabled",
        r"P2P is disabled between NVLINK connected GPUs (?P<first>\d+) and (?P<second>\d+)",
        ("P2P is disabled between NVLINK",),
        (
            "graph/paths.cc:291 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case "
            "given their connectivity, and is probably due to a hardware issue.",
        ),
    ),
    Pattern(
        "nccl.internal_assert",
        r"NCCL WARN (?P<assertion>ncclMaxSharedMem \d+ exceeds device/fn maxSharedMem \d+"
        r"|Could not find a path for pattern|Error : ring \d+ does not (?:contain rank \d+|loop back to start)|Error : could not find CPU close to GPU \d+"
        r"|Attribute \w+ of node \w+ not found"
        r"|Internal error: .{1,100})",
        (
            "exceeds device/fn maxSharedMem",
            "Could not find a path for pattern",
            "does not contain rank",
            "does not loop back to start",
            "could not find CPU close to GPU",
            "NCCL WARN Attribute",
            "NCCL WARN Internal error",
        ),
        (
            "node-a:3:4 [0] enqueue.cc:1436 NCCL WARN ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856",
            "node-a:3:4 [0] graph/search.cc:1080 NCCL WARN Could not find a path for pattern 4, falling back to simple order",
            "node-a:3:4 [0] graph/rings.cc:49 NCCL WARN Error : ring 0 does not contain rank 1",
            "node-a:3:4 [4] graph/rings.cc:38 NCCL WARN Error : ring 0 does not loop back to start (48 != 52)",
            "node-a:3:4 [0] graph/paths.cc:155 NCCL WARN Error : could not find CPU close to GPU 0",
            "node-a:3:4 [0] graph/xml.h:85 NCCL WARN Attribute busid of node nic not found",
        ),
        not_examples=("the list does not contain rank 3",),
    ),
)

PATTERNS = (*_ECHOES, *_RESULTS, *_INIT)
