"""Environment variables in logs: what NCCL 2.4 to 2.29 and torch 1.13 to 2.13 say of them, and what a shell's trace shows."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_NODE = r"(?:(?<![\w.\-])(?P<node>[\w.\-]{1,255}):\d+:\d+ \[-?\d+\] )?"

PATTERNS = (
    Pattern(
        "environment.nccl_set",
        _NODE + r"NCCL INFO (?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?\s*$",
        ("set by environment to ", "IFNAME set to "),
        (
            "node-1:2313:2313 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
            "node-1:2313:2400 [3] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
            "node-1:5646:5657 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL",
            "node-2:77:101 [0] NCCL INFO NCCL_SOCKET_IFNAME set to ib0",
        ),
        ("the variable NCCL_DEBUG was set by environment to something",),
    ),
    Pattern(
        "environment.not_a_number",
        r"NCCL (?:INFO|ATTN|WARN) Invalid value (?P<value>.*) for (?P<name>NCCL_\w+), using default (?P<default>-?\d+)",
        (", using default ",),
        ("node-1:2313:2400 [3] NCCL ATTN Invalid value true for NCCL_IB_DISABLE, using default 0.",),
        ("argument --lr is missing, using default 0.1",),
    ),
    Pattern(
        "environment.refused",
        r"Invalid value for environment variable: (?P<name>\w+)",
        ("Invalid value for environment variable: ",),
        (
            "RuntimeError: Invalid value for environment variable: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            "[rank3]: RuntimeError: Invalid value for environment variable: NCCL_BLOCKING_WAIT",
        ),
        says="crash",
    ),
    Pattern(
        "environment.sizes_differ",
        _NODE
        + r"(?:\S+ )?NCCL WARN NET/IB : .{0,300}?collective mismatch error,? local size (?P<local>\d+) remote(?: size)? (?P<remote>\d+)",
        ("collective mismatch error",),
        (
            "node-10:7400142:2256837 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective "
            "mismatch error, local size 496640 remote size 65536",
            "node-0:15483:15645 [0] transport/net_ib.cc:665 NCCL WARN NET/IB : collective mismatch error local size 546816 remote "
            "524288 addr 7ff7d1530000 rkey 2553d seq 14/1c",
        ),
        says="crash",
    ),
    Pattern(
        "environment.sizes_differ",
        _NODE
        + r"(?:\S+ )?NCCL WARN NET/Socket : (?:peer \S+ )?message truncated : receiving (?P<remote>\d+) bytes instead of (?P<local>\d+)",
        ("message truncated : receiving",),
        (
            "node-0:41:77 [1] transport/net_socket.cc:484 NCCL WARN NET/Socket : peer 10.0.0.6<58683> message truncated : receiving "
            "262144 bytes instead of 65536. If you believe your socket network is in healthy state, there may be a mismatch in "
            "collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks",
            "node-0:41:77 [1] transport/net_socket.cc:424 NCCL WARN NET/Socket : message truncated : receiving 1048576 bytes instead of 65536",
        ),
        says="crash",
    ),
    Pattern(
        "environment.no_algorithm",
        r"(?:no|No) algorithm/protocol available for function (?P<function>\w+) with datatype (?P<dtype>\w+)\.?"
        r"(?=.*?(?P<name>NCCL_(?:ALGO|PROTO)) was set to (?P<value>[^\s.]+))",
        ("algorithm/protocol available for function",),
        (
            "node-0:41:77 [1] enqueue.cc:1879 NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype "
            "ncclInt8. NCCL_ALGO was set to Tree.",
        ),
        ("NCCL WARN Error : no algorithm/protocol available for function AllReduce with datatype ncclBfloat16.",),
        says="crash",
    ),
    Pattern(
        "environment.no_network",
        r"NCCL WARN Error: network (?P<value>\S.*?) not found\.",
        ("NCCL WARN Error: network ",),
        ("node-0:41:77 [1] net.cc:209 NCCL WARN Error: network AWS Libfabric not found.",),
        ("node-0:41:77 [1] net.cc:209 NCCL WARN Error: network  not found.",),
        says="crash",
    ),
    Pattern(
        "environment.no_plugin",
        r"Failed to initialize any NET plugin",
        ("Failed to initialize any NET plugin",),
        (
            "node-0:41:77 [1] NCCL WARN Failed to initialize any NET plugin",
            "Last error:\tFailed to initialize any NET plugin",
        ),
        says="crash",
    ),
    Pattern(
        "environment.unknown_word",
        r"NCCL WARN Unrecognized (?:element|prefix) token \"(?P<word>[^\"]*)\" when parsing \"(?P<value>[^\"]*)\"",
        ("NCCL WARN Unrecognized ",),
        ('node-0:41:77 [1] graph/tuning.cc:81 NCCL WARN Unrecognized element token "rnig" when parsing "rnig,tree"',),
        says="crash",
    ),
    Pattern(
        "environment.bad_address",
        r"Invalid (?P<name>NCCL_COMM_ID)(?: \[(?P<value>[^\s,]*)\])?, please use format",
        ("Invalid NCCL_COMM_ID",),
        (
            "node-0:41:77 [0] NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
            "node-0:41:77 [0] bootstrap.cc:33 NCCL WARN Invalid NCCL_COMM_ID [node-1.cluster:37917], please use format: <ipv4>:<port>",
        ),
        says="crash",
    ),
    Pattern(
        "environment.deprecated",
        r"Environment variable (?P<name>\w+) is deprecated; use (?P<now>\w+)",
        ("is deprecated; use ",),
        (
            "[rank0]:[W1111 11:55:57.148815586 Utils.hpp:112] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; "
            "use TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function operator())",
        ),
        ("np.bool is deprecated; use bool",),
    ),
    Pattern(
        "environment.exported",
        r"^\s*\+{1,4} (?:export |declare -x )?(?P<name>(?:NCCL|TORCH|GLOO|CUDA|OMP|MASTER)_[A-Z0-9_]+)=(?P<value>.*?)\s*$",
        ("export ", "declare -x "),
        ("+ export NCCL_P2P_DISABLE=1", "++ export MASTER_PORT=29500"),
        ("run: export NCCL_P2P_DISABLE=1 and try again",),
    ),
)
