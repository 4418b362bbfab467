"""The cases of port-in-use."""

from __future__ import annotations

from tests.rules.notation import log_case, make_case
from unhang.testing import Fires, Quiet

_ERROR = "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE, address already in use@main:3"

_BIND = (
    "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use)."
)

_LISTEN = "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address."

_OWN_STORE = """Traceback (most recent call last):
  File "train.py", line 12, in main
    dist.init_process_group("nccl")
  File "/opt/env/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 179, in _env_rendezvous_handler
    store = TCPStore(master_addr, master_port, world_size, start_daemon, timeout)
RuntimeError: Address already in use"""

_CALL = "node-a: + python -m torch.distributed.run --nproc_per_node 2 --nnodes 4 --node_rank {} --master_port 12653 train.py"

_CALLS = "\n".join(_CALL.format(n) for n in (0, 0, 1, 1))

_EACH_ITS_OWN = "\n".join(["+ torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:29400 train.py"] * 2)

_NESTED = "[2024-01-23 17:42:15,396] [INFO] [launch.py:151:main] nnodes=1, num_local_procs=2, node_rank=0\n"

_NODES = f"{_NESTED}{_NESTED.replace('rank=0', 'rank=1')}".replace("nnodes=1", "nnodes=2")

_TWICE = "\n".join(f"initializing ddp: GLOBAL_RANK: {n}, MEMBER: {n + 1}/4" for n in (0, 0, 1, 1))

_REFUSED = "RuntimeError: The server socket has failed to listen ... port: 12653 ... EADDRINUSE"

_ROOT = "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:{} (errno: 13 - Permission denied)."
_UV = "torch.distributed.DistNetworkError: The server socket has failed to bind. port: {}, useIpv6: 0, code: -13, name: EACCES, message: permission denied"

_RANKS = "".join(f"[run a] worker rank {r} of 2 is up\n" for r in range(2))
_NOT_HERE = "ConnectionError: Tried to launch distributed communication on port `29511`, but another process is utilizing it. Please specify a different port"
_ON = "\n" + "".join(f"[run a] step {n} loss 2.{n}\n" for n in range(9))

CASES = {
    "port-in-use": (
        Fires(make_case({}, errors={0: _ERROR}, hang=None, exit_code=1), (0,), 3),
        Fires(log_case("RuntimeError: The server socket has failed to listen ... port: 29500 ... EADDRINUSE"), ()),
        Fires(log_case(f"Start training ...\n{_BIND}\n{_LISTEN}"), ()),
        Fires(log_case(_OWN_STORE), (0,)),
        Fires(
            log_case(
                "step 9 loss 9.5\nnode-a:1:1 [0] misc/socket.cc:409 NCCL WARN Call to bind failed: Address already in use"
            ),
            (),
        ),
        Fires(log_case(f"{_CALLS}\n{_REFUSED}"), (), cause="launcher-misuse"),
        Fires(log_case(f"{_EACH_ITS_OWN}\n{_REFUSED}"), (), cause="port-in-use"),
        Fires(log_case(f"{_CALL}\nepoch 1 step 10 loss 2.31\n{_CALL}\n{_REFUSED}"), (), cause="port-in-use"),
        Fires(log_case(_RANKS + _NOT_HERE + _ON), (), cause="port-in-use"),
        Quiet(log_case(f"{_NOT_HERE}\n{_RANKS}{_ON}"), "tried again on another port, and trained"),
        Quiet(log_case(f"{_RANKS}{_NOT_HERE}\n{_RANKS}{_ON}"), "the same after another run"),
        Quiet(
            make_case({}, errors={0: "ConnectionRefusedError: [Errno 111]@main:3"}, hang=None, exit_code=1),
            "nobody listens there: another cause",
        ),
        Quiet(
            make_case({}, hang=None, exit_code=0, log=["warning: address already in use, trying next port"]),
            "a warning in a job that ended well",
        ),
        Quiet(
            log_case(
                f"{_BIND}\n{_LISTEN}\nRendezvous complete for workers. Result:\nRuntimeError: CUDA error: unknown error"
            ),
            "a second agent on the host that then joined as a client",
        ),
        Quiet(
            log_case(f"{_BIND}\nepoch 1 step 10 loss 2.31"),
            "the other address family was free",
        ),
        Fires(log_case(f"{_NESTED}{_NESTED}{_REFUSED}"), (), cause="launcher-misuse"),
        Fires(log_case(f"{_NODES}{_REFUSED}"), (), cause="port-in-use"),
        Fires(log_case(f"{_ROOT.format(97)}\n{_LISTEN}"), (), cause="launcher-misuse"),
        Fires(log_case(_UV.format(1023)), (), cause="launcher-misuse"),
        Quiet(log_case(f"{_TWICE}\n{_REFUSED}"), "ranks were started twice: launcher-misuse says so"),
    ),
}
