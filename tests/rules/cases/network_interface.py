"""The cases of network-interface."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

# The ranks meet by a file, and NCCL is refused at an address of nobody, or of one of them.
_BY_FILE = "init_method=file:///home/u/exp/ddp_init rank 1 of 4\n"
_BOOTSTRAP = "node-a:3:3 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.4<0>\n"
_REFUSED = "node-a:3:9 [0] include/socket.h:390 NCCL WARN Connect to 10.1.0.9<21724> failed : Connection refused\n"

_LOOP = "worker-{}:31:214 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:192.168.14.30<0>\n"
_BRIDGE = "worker-{}:31:214 [0] NCCL INFO NET : Using interface docker0:{}<0>\n"
_UP = "worker-a:31:214 [0] NCCL INFO comm 0x7f3a rank 0 nranks 2 cudaDev 0 busId b9000 - Init COMPLETE\n"

CASES = {
    "network-interface": (
        Fires(
            log_case(
                "node-a:135:149 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.0.2<36978> failed : No route to host\n"
                "RuntimeError: Socket Timeout\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank0]: RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 2 vs 10\n"
                "[rank1]: RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 10 vs 2\n"
            ),
            (),
        ),
        Fires(log_case("node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"), ()),
        Fires(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using ib1:fe80::966d:ae03:b2:62c4%ib1<0>\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error, NCCL version 2.18.1\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "[rank9]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
                "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\n"
                "[rank8]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
                "error\n"
            ),
            (),
        ),
        Fires(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.3<0>\n"
                "node-a:12:61 [0] NCCL INFO bootstrap.cc:285 -> 2\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1691, unhandled system error, NCCL version 2.19.3\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "[rank0]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
                "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())\nstep 3 loss 0.1\n"
            ),
            "loopback is enough on one node",
        ),
        Quiet(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using ib1:fe80::966d:ae03:b2:62c4%ib1<0>\n"
                "node-a:12:12 [0] NCCL INFO comm 0x5f rank 0 nranks 2 cudaDev 0 busId 47000 - Init COMPLETE\n"
            ),
            "the choice of an interface is no fault",
        ),
        Quiet(
            log_case(
                "node-a:12:12 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.3<0>\n"
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1691, unhandled system error, NCCL version 2.19.3\n"
            ),
            "on Docker's bridge something else failed than the start of NCCL",
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\n"
                "node-a:1:2 [0] os/linux.cc:200 NCCL WARN ncclOsSocketPollConnect: connect to 10.8.1.2<37857> returned Connection refused, "
                "exceeded error retry count after 35 attempts\n"
            ),
            "a peer that died before is not there to connect to",
        ),
        Fires(
            log_case(
                "node-a:3:3 [0] socket.cc:703 NCCL WARN ncclSocketInit: connecting to address  with family 7 is neither AF_INET(2)\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "node-a:3:3 [0] NCCL INFO Bootstrap : Using ens12:10.1.0.4<0>\n"
                "node-a:3:3 [0] socket.cc:703 NCCL WARN ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2)\n"
            ),
            "an address that is none, where the interface was found: the peer's NCCL may be another one",
        ),
        Quiet(
            log_case(
                "node-a:3:3 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
                "node-a:3:3 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
            ),
            "a variable names an interface that is not there: that is the fault",
        ),
        Quiet(
            log_case(
                "node-a:3:3 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep for "
                "100 msec\nepoch 1 done\n"
            ),
            "a peer that listens a little later",
        ),
        Fires(log_case(f"{_BY_FILE}{_BOOTSTRAP}{_REFUSED}"), (), cause="stale-store"),
        Fires(log_case(f"{_BOOTSTRAP}{_REFUSED}"), ()),
        Fires(log_case(f"{_BY_FILE}{_BOOTSTRAP.replace('10.1.0.4', '10.1.0.9')}{_REFUSED}"), ()),
        Quiet(
            log_case(
                "node-a:3:3 [0] misc/ibvwrap.cc:61 NCCL INFO Failed to open libibverbs.so[.1]\nNET/IB : No device found.\n"
            ),
            "a node without InfiniBand is no fault",
        ),
        Fires(log_case("".join(map(_LOOP.format, "ab"))), ()),
        Fires(log_case("".join(_BRIDGE.format(x, "172.17.0.1") for x in "ab")), ()),
        Quiet(log_case(_LOOP.format("a") * 2), "the ranks of one host may use it"),
        Quiet(log_case(_BRIDGE.format("a", "172.17.0.1") + _BRIDGE.format("b", "172.18.0.1")), "each host has its own"),
        Quiet(log_case("".join(map(_LOOP.format, "ab")) + _UP), "a communicator came up all the same"),
    ),
}
