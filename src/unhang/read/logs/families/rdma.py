"""InfiniBand, RoCE and libfabric: what NCCL, UCX and libibverbs print about adapters and queue pairs."""

from __future__ import annotations

import re

from unhang.read.logs.patterns import Pattern

_EVENTS = (
    Pattern(
        "rdma.port_error",
        r"async event(?: on [\w-]+)?\s*: ?port error",
        ("port error",),
        (
            "node-a:1:2 [0] transport/net_ib.cc:96 NCCL WARN NET/IB : Got async event : port error",
            "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)",
            "ib_device.c:482  UCX  WARN  IB Async event on mlx5_0: port error on port 1",
        ),
        not_examples=("no port error so far",),
        flags=re.IGNORECASE,
    ),
    Pattern(
        "rdma.port_active",
        r"async event(?: on [\w-]+)?\s*: ?port active",
        ("port active",),
        ("NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)",),
        not_examples=("the port active on this node",),
        flags=re.IGNORECASE,
    ),
    Pattern(
        "rdma.device_fatal",
        r"async (?:fatal )?event\s*: ?local catastrophic error",
        ("local catastrophic error",),
        (
            "container-000057:394:477 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
            "NET/IB : mlx5_2:1 async fatal event: local catastrophic error",
        ),
        not_examples=("a local catastrophic error is rare",),
        says="crash",
    ),
    Pattern(
        "rdma.gid_change",
        r"async event(?: on [\w-]+)?\s*: ?GID table change|NET/IB : \S+ GID table changed",
        ("GID table change",),
        (
            "vm-14:165:607 [0] transport/net_ib.cc:73 NCCL WARN NET/IB : Got async event : GID table change",
            "NET/IB : mlx5_0:1 GID table changed",
        ),
        not_examples=("read the GID table changelog",),
        flags=re.IGNORECASE,
    ),
    Pattern(
        "rdma.client_reregister",
        r"async event(?: on [\w-]+)?\s*: ?client reregist",
        ("client reregist",),
        ("NET/IB : mlx5_0:1 Got non-fatal async event: client reregistration(17)",),
        not_examples=("client reregistered with the server",),
        flags=re.IGNORECASE,
    ),
)

_TRANSFERS = (
    Pattern(
        "rdma.completion_error",
        r"Got completion (?:from peer (?P<peer>[^\s<]+)\S* )?with (?:error |status=)(?:IBV_WC_(?P<name>\w+)\()?(?P<status>\d+)"
        r"(?:.{0,200}?vendor err (?P<vendor>\d+))?(?:.{0,60}? localGid (?P<gid>\S+))?",
        ("Got completion",),
        (
            "vm-14:706:640 [0] transport/net_ib.cc:816 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 32633, "
            "vendor err 129",
            "ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<44206> with status=12 opcode=129 len=65536 "
            "vendor err 129 (Recv) localGid ::ffff:10.0.1.1 remoteGids::ffff:10.0.1.2",
            "NET/IB: Got completion from peer 10.0.0.9<44206> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1)",
        ),
        not_examples=("Got completion of the download",),
        says="crash",
    ),
    Pattern(
        "rdma.modify_qp_failed",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(?P<error>[A-Z][A-Za-z ]+[a-z])"
        r"(?:.{0,160}? local GID (?P<gid>[0-9a-f:.]+),)?",
        ("ibv_modify_qp failed",),
        (
            "node-3:862005:485741 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is "
            "unreachable",
            "ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state "
            "INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.1.1",
        ),
        not_examples=("ibv_modify_qp failed",),
        says="crash",
    ),
    Pattern(
        "rdma.wrong_type",
        r"wrong type (?P<got>\d+) != (?P<wanted>\d+)",
        ("wrong type ",),
        (
            "socketFinalizeAccept: wrong type 3 != 4",
            "socketFinalizeAccept from 10.0.0.1<40000>: wrong type 3 != 4",
        ),
        not_examples=("TypeError: wrong type str",),
        says="crash",
    ),
)

_MEMORY = (
    Pattern(
        "rdma.register_no_memory",
        r"(?:ibv_(?:exp_)?reg_\w*mr\w*|fi_mr_reg\w*)(?:\([^)]{0,200}\))? failed.{0,40}Cannot allocate memory",
        ("Cannot allocate memory",),
        (
            "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "UCX  ERROR ibv_reg_mr(address=0x7f, length=4096, access=0xf) failed: Cannot allocate memory",
            "Call to ibv_reg_mr failed with error Cannot allocate memory",
        ),
        not_examples=("OSError: [Errno 12] Cannot allocate memory",),
        says="crash",
    ),
    Pattern(
        "rdma.create_no_memory",
        r"ibv_(?:exp_)?(?:create_(?:cq|qp|srq)\w*|alloc_pd)(?:\([^)]{0,200}\))? failed.{0,40}Cannot allocate memory",
        ("Cannot allocate memory",),
        (
            "Call to ibv_create_cq failed with error Cannot allocate memory",
            "ibv_create_cq(cqe=4096) failed: Cannot allocate memory",
        ),
        not_examples=("RuntimeError: Cannot allocate memory",),
        says="crash",
    ),
    Pattern(
        "rdma.memlock_warning",
        r"RLIMIT_MEMLOCK is (?P<limit>\d+)|max locked memory\s+\(kbytes, -l\) (?P<kbytes>\d+)|max locked memory .{0,20}is too (?:low|small)",
        ("RLIMIT_MEMLOCK is", "max locked memory"),
        (
            "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.",
            "max locked memory       (kbytes, -l) 64",
        ),
        not_examples=("max locked memory       (kbytes, -l) unlimited",),
    ),
)

_LINKS = (
    Pattern(
        "rdma.link_down",
        r"mlx[45]_\w+.{0,100}(?:Link DOWN|Link down|link down|Cable unplugged)",
        ("Link DOWN", "Link down", "link down", "Cable unplugged"),
        (
            "[ 1234.5] mlx5_core 0000:41:00.0 ens1f0: Link down",
            "[ 1234.5] mlx5_core 0000:41:00.0: Port module event[error]: module 0, Cable error, Cable unplugged",
        ),
        not_examples=("e1000e: eth0 NIC Link down",),
    ),
    Pattern(
        "rdma.link_up",
        r"mlx[45]_\w+.{0,100}(?:Link UP|Link up|link up|Cable plugged)",
        ("Link UP", "Link up", "link up", "Cable plugged"),
        ("[ 1250.5] mlx5_core 0000:41:00.0 ens1f0: Link up",),
        not_examples=("e1000e: eth0 NIC Link up",),
    ),
    Pattern(
        "rdma.adapter_failed",
        r"mlx5_\w+.{0,80}(?:health (?:compromised|recovery)|fatal (?:error|sensor)|assert_var\[0\]|in fatal state)",
        ("mlx5_core",),
        ("[ 99.1] mlx5_core 0000:41:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",),
        not_examples=("[ 1.1] mlx5_core 0000:41:00.0: firmware version: 16.28.2006",),
    ),
    Pattern(
        "rdma.ofi_failed",
        r"NET/OFI (?:Request .{0,60}completed with error|Unable to register memory|.{0,40}failed.{0,20}RC: )(?:.{0,60}RC: (?P<code>-?\d+))?",
        ("NET/OFI ",),
        (
            "NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument",
            "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. Error: unknown error",
        ),
        not_examples=("NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.7.4",),
        says="crash",
    ),
)

PATTERNS = (*_EVENTS, *_TRANSFERS, *_MEMORY, *_LINKS)
