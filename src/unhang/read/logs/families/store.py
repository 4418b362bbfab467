"""The store that ranks meet in (TCPStore, file store), the sockets below it, and the barriers over it: torch 1.5 to 2.13."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_HOST_PORT = r"(?:\(|\[)?(?P<host>[^\s\[\](),]+?)\]?(?:, |:)(?P<port>\d{1,5})"
_GAI = "The IPv6 network addresses of (node-a, 53821) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."
_BARRIER = (
    r"rank:? ?(?P<rank>\d+), (?:for )?key: ?(?:store_based_barrier_key:)?(?P<key>\S*) "
    r"\(world_size=(?P<world_size>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)"
)

PATTERNS = (
    # The port. An error names it as the end of the process; a warning may be followed by a second try that succeeds.
    Pattern(
        "store.port_taken",
        r"Error: .{0,300}(?:errno: ?98\b|Errno 98\b|code: -98\b|EADDRINUSE|[Aa]ddress already in use|Only one usage of each socket)",
        ("EADDRINUSE", "ddress already in use", "Only one usage of each socket"),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0, "
            "code: -98, name: EADDRINUSE, message: address already in use",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server "
            "socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            "RuntimeError: Address already in use",
            "OSError: [Errno 98] Address already in use",
        ),
        (
            "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).",
            "warning: Address already in use, trying the next port",
        ),
        says="crash",
    ),
    Pattern(
        "store.port_taken",
        r"Tried to launch distributed communication on port `(?P<port>\d+)`, but another process is utilizing it",
        ("Tried to launch distributed communication",),
        (
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it. "
            "Please specify a different port.",
        ),
        says="crash",
    ),
    Pattern(
        "store.bind_failed",
        r"server socket has failed to (?:bind|listen).{0,300}?(?:\]:|0\.0\.0\.0:|port: ?)(?P<port>\d+).{0,300}(?:errno: 98\b|EADDRINUSE)",
        ("server socket has failed to",),
        (
            "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).",
            "[W1120 socket.cpp:436] [c10d] The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in use).",
        ),
        ("[W socket.cpp:424] The server socket has failed to bind to [::]:6000 (errno: 13 - Permission denied).",),
    ),
    Pattern(
        "store.listen_failed",
        r"\[E.{0,300}The server socket has failed to listen on any local network address",
        ("server socket has failed to listen on any",),
        ("[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.",),
        ("RuntimeError: The server socket has failed to listen on any local network address. port: 29500",),
        says="crash",
    ),
    # A host without IPv6: always beside the line that decides, never a cause.
    Pattern(
        "store.ipv6_off",
        r"socket cannot be initialized (?:on|to connect to) .{0,300}\(errno: 97 - Address family not supported",
        ("(errno: 97 - Address family not supported",),
        (
            "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [localhost]:6001 (errno: 97 - Address "
            "family not supported by protocol).",
        ),
    ),
    # The way to the store.
    Pattern(
        "store.connect_timed_out",
        rf"The client socket has timed out after (?P<timeout>\S+) while trying to connect to {_HOST_PORT}",
        ("The client socket has timed out after",),
        (
            "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (192.0.2.1, 1234).",
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a, 29500).",
            "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 192.0.2.1:1234",
        ),
        says="hang",
    ),
    Pattern(
        "store.connect_timed_out",
        r"connect\(\) timed out(?:\. Original timeout was (?P<timeout>\d+) ms)?",
        ("connect() timed out",),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", "RuntimeError: connect() timed out."),
        says="hang",
    ),
    Pattern(
        "store.connect_timed_out",
        r"RuntimeError: Connection timed out\s*$",
        ("RuntimeError: Connection timed out",),
        ("RuntimeError: Connection timed out",),
        ("RuntimeError: Connection timed out while downloading the weights",),
        says="hang",
    ),
    Pattern(
        "store.connect_failed",
        rf"The client socket has failed to connect to any network address of {_HOST_PORT}",
        ("failed to connect to any network address",),
        (
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node-a, 29500). "
            "The client socket has failed to connect to 192.0.2.7:29500 (errno: 111 - Connection refused).",
        ),
        says="crash",
    ),
    Pattern(
        "store.connect_failed",
        rf"TCP client failed to connect/validate to host {_HOST_PORT} - timed out",
        ("TCP client failed to connect/validate",),
        (
            "[E521 TCPStore.cpp:318] [c10d] TCP client failed to connect/validate to host 192.0.2.4:37907 - timed out (try=1, "
            "timeout=600000ms): The client socket has timed out after 600000ms while trying to connect to (192.0.2.4, 37907).",
        ),
        (
            "[W TCPStore.cpp:331] [c10d] TCP client failed to connect/validate to host 192.0.2.4:37907 - retrying (try=0, timeout=6)",
        ),
        says="hang",
    ),
    Pattern(
        "store.connect_refused",
        rf"The client socket has failed to connect to {_HOST_PORT} \(errno: (?P<errno>\d+)",
        ("The client socket has failed to connect to",),
        (
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 111 - Connection refused).",
        ),
    ),
    Pattern(
        "store.unresolved",
        r"network addresses of \((?P<host>[^,]*), (?P<port>\d+)\) cannot be retrieved \(gai error: (?P<gai>-?\d+)",
        ("cannot be retrieved (gai error",),
        (f"[W socket.cpp:601] [c10d] {_GAI}",),
    ),
    Pattern(
        "store.host_not_found",
        r"Error: host not found: |RuntimeError: .{0,300}(?:getaddrinfo|gethostbyname).{0,300}(?:not known|failure in name resolution)",
        ("host not found: ", "getaddrinfo", "gethostbyname"),
        ("ValueError: host not found: Name or service not known",),
        ("[W net.py] proxy: host not found: falling back to the cache",),
        says="crash",
    ),
    Pattern(
        "store.gaierror",
        r"(?:socket\.)?gaierror: \[Errno (?P<gai>-\d+)\]",
        ("gaierror: [Errno",),
        ("socket.gaierror: [Errno -2] Name or service not known",),
        says="crash",
    ),
    # Waiting in the store.
    Pattern(
        "store.socket_timeout",
        r"(?:DistStoreError|RuntimeError|TimeoutError): Socket Timeout",
        ("Error: Socket Timeout",),
        ("torch.distributed.DistStoreError: Socket Timeout",),
        says="hang",
    ),
    Pattern(
        "store.clients_joined",
        r"Timed out after (?P<timeout>\d+) seconds waiting for (?:clients|workers)\. (?P<joined>\d+)/(?P<expected>\d+) (?:clients|workers) joined",
        ("seconds waiting for clients.", "seconds waiting for workers."),
        ("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined.",),
        says="hang",
    ),
    Pattern(
        "store.barrier_timed_out",
        rf"Timed out initializing process group in store based barrier on {_BARRIER}",
        ("in store based barrier on rank",),
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
            "(world_size=2, worker_count=1, timeout=0:10:00)",
            "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 3, for key: "
            "store_based_barrier_key:0 (world_size=8, num_workers_joined=7, timeout=0:30:00 error=Socket Timeout)",
        ),
        says="hang",
    ),
    Pattern(
        "store.barrier_waiting",
        rf"Waiting in store based barrier to initialize process group for .{{0,300}}?{_BARRIER}",
        ("Waiting in store based barrier",),
        (
            "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=4, "
            "worker_count=16, timeout=0:01:00)",
            "Waiting in store based barrier to initialize process group for 10 secondsrank: 0, key: store_based_barrier_key:0 "
            "(world_size=4, num_workers_joined=3, timeout=0:30:00 error=wait timeout)",
        ),
    ),
    Pattern(
        "store.barrier_done",
        r"Rank (?P<rank>\d+): Completed store-based barrier for key: ?(?:store_based_barrier_key:)?(?P<key>\S*) with (?P<world_size>\d+) nodes",
        ("Completed store-based barrier",),
        ("Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.",),
    ),
    Pattern(
        "store.file_exists",
        r"File already exists: (?P<path>\S*(?:dist|init|store|rdzv|sync)\S*)",
        ("File already exists: ",),
        ("File already exists: output.tmp/dist_init",),
        ("File already exists: model.bin, skipping the download",),
    ),
    Pattern(
        "store.wait_for_input",
        r"waitForInput: socket .{0,300}remote=\[?(?P<host>[^\]]*)\]?:(?P<port>\d+)\)? timed out after (?P<timeout>\d+)ms",
        ("waitForInput: socket",),
        (
            "[W219 05:13:51.151 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=11, addr=[node-a]:38674, "
            "remote=[::ffff:192.0.2.35]:23456) timed out after 900000ms",
        ),
        says="hang",
    ),
    Pattern(
        "store.wait_timed_out",
        r"wait timeout after (?P<timeout>\d+)ms, keys: (?P<keys>.*)",
        ("wait timeout after",),
        ("torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",),
        says="hang",
    ),
    # What a rank prints of another that never came to the communicator, or of a store that is gone.
    Pattern(
        "store.unique_id",
        r"\[(?P<rank>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from \[(?P<from_rank>\d+)\].{0,300}?"
        r"by key '(?P<key>[^']*)', but store->get\('[^']*'\) got error: (?P<reason>.*)",
        ("retrieving ncclUniqueId from",),
        (
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
            "key-value store by key '0', but store->get('0') got error: Connection reset by peer",
        ),
    ),
    Pattern(
        "store.gone",
        r"recvValue failed|sendBytes failed|recvVector failed|Failed to (?:recv|send), (?:got|sent) 0 bytes\. Connection was likely closed",
        ("recvValue failed", "sendBytes failed", "recvVector failed", "Connection was likely closed"),
        (
            "[W TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4, addr=[node-a]:38674, remote=[node-b]:29500): failed to "
            "recv, got 0 bytes",
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
            "shutdown or crash?",
        ),
    ),
    Pattern(
        "store.should_dump",
        r'Failed to check the "should dump" flag on TCPStore',
        ('Failed to check the "should dump" flag',),
        (
            '[W ProcessGroupNCCL.cpp:1764] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on TCPStore, (maybe '
            "TCPStore server has shut down too early), with error: Broken pipe",
        ),
    ),
)
