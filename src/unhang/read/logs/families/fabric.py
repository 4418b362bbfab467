"""Sockets, interfaces and NVLink fabric: what NCCL and gloo print when one node cannot reach another."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_WHY = (
    r"(?P<error>No route to host|Network is unreachable|Connection refused|Connection timed out|Software caused connection abort"
    r"|Cannot assign requested address|Host is down|Network is down|Operation not permitted)"
)
_WHY_ANCHORS = (
    "No route to host",
    "Network is unreachable",
    "Connection refused",
    "Connection timed out",
    "Software caused connection abort",
    "Cannot assign requested address",
    "Host is down",
    "Network is down",
    "Operation not permitted",
)

_CONNECT = (
    Pattern(
        "fabric.connect_failed",
        r"(?:Net ?: ?Connect|ocketStartConnect: ?[Cc]onnect|ocketPollConnect: [Cc]onnect|NCCL WARN Connect) to "
        rf"(?P<address>[^\s<]+)(?:<(?P<port>\d+)>)? (?:failed ?: ?|returned (?:\d+\()?){_WHY}(?!.{{0,20}}, retrying)",
        _WHY_ANCHORS,
        (
            "host-a:135:149 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.237.23<36978> failed : No route to host",
            "host-b:859:859 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.239.213.217<33895> returned 113(No "
            "route to host) errno 115(Operation now in progress)",
            "os/linux.cc:200 NCCL WARN ncclOsSocketPollConnect: connect to 10.8.1.2<37857> returned Connection refused, exceeded "
            "error retry count after 35 attempts",
            "node-a:9:9 [0] include/socket.h:403 NCCL WARN Connect to fe80::c4eb:49ff:fe04:e32d%6<57335> failed : Network is "
            "unreachable",
            "node-c:39:40 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused "
            "connection abort",
        ),
        not_examples=(
            "socketPollConnect: connect to 10.0.0.1<3> returned Connection refused, retrying (1/34) after sleep for 100 msec",
            "requests.exceptions.ConnectionError: Connection refused",
        ),
        says="crash",
    ),
    Pattern(
        "fabric.connect_failed",
        rf"(?:include/|misc/|transport/)?socket\.(?:h|cc):\d+ (?:NCCL )?WARN Call to connect (?:failed|timeout) ?: {_WHY}",
        ("Call to connect ",),
        ("node-b:18553:18611 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",),
        not_examples=("Call to connect succeeded",),
        says="crash",
    ),
    Pattern(
        "fabric.connect_exhausted",
        r"socket(?:Poll|Start)Connect: exceeded (?P<what>timeouts|retries) \(\d+\)",
        ("Connect: exceeded",),
        (
            "misc/socket.cc:520 NCCL WARN socketPollConnect: exceeded timeouts (3)",
            "socketStartConnect: exceeded retries (20000)",
        ),
        says="crash",
    ),
    Pattern(
        "fabric.connect_exhausted",
        r"ocketPollConnect poll\(\) (?:returned 1, (?P<what>no POLLOUT events)|failed)",
        ("ocketPollConnect poll()",),
        ("[misc/socket.cc:586] NCCL WARN socketPollConnect poll() returned 1, no POLLOUT events",),
        says="crash",
    ),
    Pattern(
        "fabric.connect_retry",
        r"ocketPollConnect: connect (?:to (?P<address>[^\s<]+)(?:<\d+>)? )?returned (?P<error>[\w ]{3,60}), retrying "
        r"\((?P<attempt>\d+)/(?P<attempts>\d+)\)",
        (", retrying (",),
        (
            "host-b:21:60 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying (26/34) after sleep for "
            "2600 msec",
            "ncclOsSocketPollConnect: connect to 10.0.0.1<3> returned Connection refused, retrying (1/34) after sleep for 100 msec",
        ),
        not_examples=("download failed, retrying (1/3)",),
    ),
    Pattern(
        "fabric.gloo_connect_failed",
        rf"(?:connectFullMesh failed|timed out connecting|gloo.{{0,160}}connect: ).{{0,300}}?{_WHY}(?:.{{0,40}}remote=\[(?P<address>[^\]]+)\])?",
        _WHY_ANCHORS,
        (
            "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out "
            "connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:4242 (rank=8, size=16, local=[127.0.0.1])",
            "gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable",
        ),
        not_examples=("OSError: [Errno 101] Network is unreachable",),
        says="crash",
    ),
    Pattern(
        "fabric.gloo_connect_failed",
        r"timed out connecting: SO_ERROR: (?P<error>Operation now in progress|Operation already in progress|Success)?"
        r".{0,60}remote=\[(?P<address>[^\]]+)\]",
        ("timed out connecting",),
        ("timed out connecting: SO_ERROR: Operation now in progress, remote=[10.0.0.4]:41000",),
        not_examples=("timed out connecting to the database",),
        says="crash",
    ),
)

_INTERFACES = (
    Pattern(
        "fabric.no_interface",
        r"Bootstrap ?: no socket interface found|No (?:socket|IP|usable) interface found|NET/\w+ ?: No IP interface found"
        r"|Could not find any local interface|[Nn]o interface found in the same subnet"
        r"|connecting to address .{0,40}with family \d+ is neither AF_INET|Net ?: No interface found",
        (
            "no socket interface found",
            "interface found",
            "is neither AF_INET",
            "Could not find any local interface",
        ),
        (
            "node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
            "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
            "NCCL WARN NET/IB : No IP interface found.",
        ),
        not_examples=("1 interface found",),
        says="crash",
    ),
    Pattern(
        "fabric.no_family",
        r"Socket creation failed ?: Address family not supported",
        ("Socket creation failed",),
        (
            "include/socket.h:344 WARN Socket creation failed : Address family not supported by protocol",
            "misc/socket.cc:690 NCCL WARN ncclSocketInit: Socket creation failed : Address family not supported by protocol",
        ),
        not_examples=("Socket creation failed : Too many open files",),
        says="crash",
    ),
    Pattern(
        "fabric.bind_failed",
        r"Call to bind failed ?: Cannot assign requested address",
        ("Call to bind failed",),
        ("node-a:27:27 [0] misc/socket.cc:379 NCCL WARN Call to bind failed : Cannot assign requested address",),
        not_examples=("Call to bind failed : Address already in use",),
        says="crash",
    ),
    Pattern(
        "fabric.bootstrap_using",
        r"Bootstrap ?: Using (?:\[0\])?(?P<interface>[\w.-]+):(?P<address>[0-9a-fA-F.:%\w]+)<\d+>",
        ("Bootstrap : Using", "Bootstrap: Using"),
        ("host-a:394:394 [1] NCCL INFO Bootstrap : Using enp67s0:192.168.171.173<0>",),
    ),
)

_LOST = (
    Pattern(
        "fabric.connection_reset",
        r"Call to (?P<call>write|writev|send|sendmsg|recv|recvmsg|read)(?: (?:from|to) \S+)? failed ?: Connection reset by peer",
        ("Connection reset by peer",),
        (
            "worker0:15:91 [3] include/socket.h 398 NCCL WARN Call to write failed : Connection reset by peer.",
            "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.1<4242> failed : Connection "
            "reset by peer",
        ),
        not_examples=("gloo: Read error [10.0.0.1]:4242: Connection reset by peer",),
        says="crash",
    ),
    Pattern(
        "fabric.connection_lost",
        r"Call to (?P<call>write|writev|send|sendmsg|recv|recvmsg|read)(?: (?:from|to) \S+)? failed ?: "
        r"(?P<error>Connection timed out|No route to host|Network is unreachable)",
        ("Connection timed out", "No route to host", "Network is unreachable"),
        (
            "node-a:3:4 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.1<4242> failed : Connection "
            "timed out",
        ),
        not_examples=("include/socket.h:360 WARN Call to connect failed : Connection timed out",),
        says="crash",
    ),
    Pattern(
        "fabric.too_many_files",
        r"(?P<failed>(?:Error|WARN|failed|Socket\.h).{0,200})?(?:[Tt]oo many open files|\[Errno 24\]|\bEMFILE\b)",
        ("oo many open files", "[Errno 24]", "EMFILE"),
        (
            'Socket.h(166):"too many open files"',
            "ncclOsSocketTryAccept: Accept failed: Too many open files",
            "OSError: [Errno 24] Too many open files",
        ),
    ),
)

_NVLINK = (
    Pattern(
        "fabric.multicast_failed",
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory(?:.{0,120}CUDA error (?P<code>\d+))?",
        ("Failed to bind NVLink SHARP",),
        (
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed "
            "in the present state'.",
            "transport/nvls.cc:287 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory",
        ),
        says="crash",
    ),
    Pattern(
        "fabric.multicast_failed",
        r"nvls\.cc:\d+ NCCL WARN Cuda failure (?:(?P<code>\d+) )?'(?P<error>[^']{1,120})'|cuMulticast\w+.{0,60}(?:failed|error)",
        ("nvls.cc", "cuMulticast"),
        (
            "[2025-07-01 05:49:24] node004:43201:43201 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be "
            "performed in the present state'",
            "node-b:78:79 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
        ),
        not_examples=("node004:43:43 [1] NCCL INFO transport/nvls.cc:409 -> 1",),
        says="crash",
    ),
    Pattern(
        "fabric.system_not_ready",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        ("system not yet initialized", "SYSTEM_NOT_READY", "SystemNotReady"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",),
        says="crash",
    ),
    Pattern(
        "fabric.manager_failed",
        r"fabric ?manager.{0,80}(?:[Ff]ailed with result|don't match with driver version|version mismatch|is not running|inactive \(dead\))"
        r"|NV_ERR_FABRIC_STATE_OUT_OF_SYNC|[Ff]ailed to find the (?:member )?GPU handle|FABRIC_MANAGER_NOT_(?:LOADED|PRESENT)"
        r"|error in the Fabric Manager or NVSwitches",
        (
            "fabricmanager",
            "fabric manager",
            "FABRIC_STATE_OUT_OF_SYNC",
            "GPU handle",
            "FABRIC_MANAGER_NOT_",
            "Fabric Manager or NVSwitches",
        ),
        (
            "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
            "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
            "fabric manager NVIDIA GPU driver interface version 535.54.03 don't match with driver version 550.54.15",
        ),
        not_examples=("Started nvidia-fabricmanager.service",),
    ),
)

PATTERNS = (*_CONNECT, *_INTERFACES, *_LOST, *_NVLINK)
