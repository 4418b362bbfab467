"""torchrun and the elastic agent: rendezvous, the ends of workers, signals, the exit barrier. torch 1.9 to 2.13."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    # The rendezvous.
    Pattern(
        "elastic.rendezvous_unreachable",
        r"RendezvousConnectionError: The connection to the (?P<backend>C10d|etcd)\b",
        ("RendezvousConnectionError: The connection to the",),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See "
            "inner exception for details.",
        ),
        says="crash",
    ),
    Pattern(
        "elastic.agent_lost_store",
        r"num_nodes_waiting = rdzv_handler\.num_nodes_waiting\(\)|has failed to (?:send a keep-alive heartbeat to|shutdown) the rendezvous",
        (
            "rdzv_handler.num_nodes_waiting()",
            "has failed to send a keep-alive heartbeat",
            "has failed to shutdown the rendezvous",
        ),
        (
            "    num_nodes_waiting = rdzv_handler.num_nodes_waiting()",
            "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'node-b_4242_0' has failed to send a keep-alive "
            "heartbeat to the rendezvous 'job' due to an error of type RendezvousConnectionError.",
        ),
    ),
    Pattern(
        "elastic.rendezvous_timed_out",
        r"RendezvousTimeoutError\b(?!\()",
        ("RendezvousTimeoutError",),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",),
        says="hang",
    ),
    Pattern(
        "elastic.rendezvous_closed",
        r"RendezvousClosedError\b(?!\()",
        ("RendezvousClosedError",),
        ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError",),
    ),
    Pattern(
        "elastic.bad_endpoint",
        r"The (?:hostname|port number) of the rendezvous endpoint '(?P<endpoint>[^']*)' must be|"
        r"port must have value from 0 to 65535 but was (?P<port>-?\d+)",
        ("of the rendezvous endpoint", "port must have value from 0 to 65535"),
        (
            "ValueError: The port number of the rendezvous endpoint 'node-a:http' must be an integer between 0 and 65536.",
            "ValueError: The hostname of the rendezvous endpoint 'http://node-a:29400' must be a dot-separated list of labels, an IPv4 "
            "address, or an IPv6 address.",
            "ValueError: port must have value from 0 to 65535 but was 295000.",
        ),
        says="crash",
    ),
    Pattern(
        "elastic.launcher_frame",
        r'File "[^"]*torch/distributed/(?:run\.py|launcher/|rendezvous\.py|elastic/(?:rendezvous|agent)/)',
        ("torch/distributed/",),
        (
            '  File "/opt/conda/lib/python3.10/site-packages/torch/distributed/run.py", line 923, in <module>',
            'File "/opt/env/lib/python3.12/site-packages/torch/distributed/rendezvous.py", line 174, in _create_c10d_store',
        ),
        (
            '  File "/opt/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce',
        ),
    ),
    Pattern(
        "elastic.assigns_ranks",
        r"in (?:_assign_worker_ranks|_share_and_gather|_rendezvous|_initialize_workers)\s*$",
        ("in _assign_worker_ranks", "in _share_and_gather", "in _rendezvous", "in _initialize_workers"),
        (
            '  File "/opt/env/lib/python3.10/site-packages/torch/distributed/elastic/agent/server/api.py", line 642, in _assign_worker_ranks',
        ),
    ),
    Pattern(
        "elastic.launch_config",
        r"^\s*(?P<name>min_nodes|max_nodes|nproc_per_node|rdzv_endpoint|rdzv_backend|run_id|max_restarts)\s+: (?P<value>\S+)",
        ("min_nodes ", "max_nodes ", "nproc_per_node ", "rdzv_endpoint ", "rdzv_backend ", "run_id ", "max_restarts "),
        ("  nproc_per_node   : 8", "  rdzv_endpoint    : 192.0.2.1:29400"),
        ("the nproc_per_node : option",),
    ),
    Pattern(
        "elastic.rendezvous_done",
        r"Rendezvous complete for workers",
        ("Rendezvous complete for workers",),
        ("[default] Rendezvous complete for workers. Result:",),
    ),
    # Ends and restarts of workers.
    Pattern(
        "elastic.worker_failed",
        r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
        ("failed (exitcode:",),
        ("E1120 api.py:695] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: /usr/bin/python",),
        says="crash",
    ),
    Pattern(
        "elastic.child_failed",
        r"errors\.ChildFailedError",
        ("errors.ChildFailedError",),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",),
        says="crash",
    ),
    Pattern(
        "elastic.restarting",
        r"Worker group (?P<state>\w+)\. (?P<left>\d+)/(?P<most>\d+) attempts left; will restart worker group",
        ("will restart worker group",),
        ("[default] Worker group FAILED. 2/3 attempts left; will restart worker group",),
    ),
    Pattern(
        "elastic.restart_count",
        r"restart_count=(?P<count>[1-9]\d*)",
        ("restart_count=",),
        ("  restart_count=1",),
        ("  restart_count=0",),
    ),
    Pattern(
        "elastic.closing_signal",
        r"Sending process (?P<pid>\d+) closing signal (?P<signal>\w+)",
        ("closing signal",),
        ("W1120 api.py:900] Sending process 4242 closing signal SIGTERM",),
    ),
    Pattern(
        "elastic.exit_barrier",
        r"Local worker group finished \((?:WorkerState\.)?(?P<state>\w+)\)\. Waiting (?P<timeout>\d+) seconds for other agents to finish",
        ("seconds for other agents to finish",),
        (
            "[default] Local worker group finished (SUCCEEDED). Waiting 300 seconds for other agents to finish",
            "Local worker group finished (WorkerState.FAILED). Waiting 300 seconds for other agents to finish",
        ),
    ),
    # Signals that reached the agent.
    Pattern(
        "elastic.death_signal",
        r"Received (?:Signals\.)?(?P<signal>\w+) death signal, shutting down workers",
        ("death signal, shutting down workers",),
        (
            "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
            "Received Signals.SIGHUP death signal, shutting down workers",
        ),
        says="crash",
    ),
    Pattern(
        "elastic.signal_exception",
        r"SignalException: Process (?P<pid>\d+) got signal: (?P<signal>\w+)",
        ("SignalException: Process",),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 1",),
        says="crash",
    ),
)
