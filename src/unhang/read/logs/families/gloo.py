"""gloo: its start, its transport and the monitored barrier. torch 1.5 to 2.13."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_AT = r"gloo/transport/(?:tcp|uv)[\w/]*"

PATTERNS = (
    # The start.
    Pattern(
        "gloo.connect_failed",
        r"Gloo connectFullMesh failed with (?P<reason>.*)",
        ("Gloo connectFullMesh failed with",),
        (
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
            "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timeout",
        ),
        says="crash",
    ),
    Pattern(
        "gloo.connect_failed",
        r"gloo/transport/tcp/pair\.cc:\d+\] connect \[(?P<address>[^\]]*)\]:(?P<port>\d+): (?P<reason>.*)",
        ("] connect [",),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect [127.0.1.1]:8594: Connection refused",
        ),
        says="crash",
    ),
    Pattern(
        "gloo.family_mismatch",
        r"ss1\.ss_family == ss2\.ss_family\. (?P<ours>\d+) vs (?P<theirs>\d+)|gloo/transport/tcp/pair\.cc:\d+\] address family mismatch",
        ("ss1.ss_family == ss2.ss_family", "address family mismatch"),
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:276] ss1.ss_family == ss2.ss_family. 2 vs 10",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:210] address family mismatch",
        ),
        says="crash",
    ),
    Pattern(
        "gloo.no_interface",
        r"Unable to find address for:? ?(?P<interface>\S+)|Failed to look up the IP address for interface (?P<looked_up>\S+)",
        ("Unable to find address for", "Failed to look up the IP address for interface"),
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address "
            "for: eth9",
        ),
        says="crash",
    ),
    # A warning: the loopback address is taken instead, which is enough on one machine.
    Pattern(
        "gloo.unresolved",
        r"Unable to resolve hostname to a \(local\) address",
        ("Unable to resolve hostname to a (local) address",),
        (
            "[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as "
            "fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME.",
        ),
    ),
    Pattern(
        "gloo.unresolved",
        r"Error: .{0,300}Unable to resolve address (?:for )?(?P<host>[\w.-]+)"
        r"|(?:tcp|uv)/(?:device|address)\.cc:\d+\].{0,300}(?:Name or service not known|Temporary failure in name resolution)",
        ("Unable to resolve address", "Name or service not known", "Temporary failure in name resolution"),
        (
            "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] rv != -1. -1 vs -1. Unable to "
            "resolve address node-b",
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:58] Name or service not known",
        ),
        ("curl: (6) Could not resolve host: Name or service not known",),
        says="crash",
    ),
    Pattern(
        "gloo.rank_not_below_size",
        r"context\.cc:\d+\] ?rank < size\. (?P<wrong_rank>\d+) vs (?P<size>\d+)",
        ("rank < size",),
        ("RuntimeError: [enforce fail at ../third_party/gloo/gloo/context.cc:27] rank < size. 2 vs 2",),
        says="crash",
    ),
    # In the middle of the job.
    Pattern(
        "gloo.timed_out",
        rf"{_AT}[\w.]*:\d+\] Timed out waiting (?P<timeout>\d+) ?ms for (?P<operation>send|recv) operation",
        ("Timed out waiting",),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
            "operation to complete",
        ),
        ("Timed out waiting 30 s for the cache",),
        says="hang",
    ),
    Pattern(
        "gloo.pair_timed_out",
        r"Application timeout caused pair closure",
        ("Application timeout caused pair closure",),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:133] Application timeout caused pair closure",
        ),
        says="hang",
    ),
    Pattern(
        "gloo.peer_closed",
        rf"{_AT}[\w.]*:\d+\].{{0,300}}?Connection closed by peer \[(?P<address>[^\]]*)\](?::(?P<port>\d+))?",
        ("Connection closed by peer",),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.7]:8594",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:543] Connection closed by peer [::ffff:192.0.2.7]:59698",
        ),
        says="crash",
    ),
    Pattern(
        "gloo.reset",
        rf"{_AT}[\w.]*:\d+\].{{0,300}}?(?P<what>Connection reset by peer|Broken pipe)",
        ("Connection reset by peer", "Broken pipe"),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Read error [192.0.2.7]:13231: Connection reset by peer",
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:575] writev [127.0.0.1]:9024: Broken pipe",
        ),
        ("BrokenPipeError: [Errno 32] Broken pipe",),
        says="crash",
    ),
    Pattern(
        "gloo.size_mismatch",
        r"Received data size doesn't match expected size[^\d]*(?P<received>\d+)? ?(?:vs)? ?(?P<expected>\d+)?"
        r"|op\.preamble\.length <= op\.nbytes\. (?P<length>\d+) vs (?P<room>\d+)",
        ("Received data size doesn't match expected size", "op.preamble.length <= op.nbytes"),
        (
            "terminate called after throwing an instance of 'gloo::EnforceNotMet' what():  [enforce fail at "
            "../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096",
            "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code? 40 vs 20",
        ),
        says="crash",
    ),
    # The monitored barrier: rank 0 knows who is missing; the others only point at rank 0.
    Pattern(
        "gloo.monitored_barrier_missing",
        r"Ranks? (?P<missing>\d+(?:, ?\d+)*) failed to pass monitoredBarrier in (?P<timeout>\d+) ?ms",
        ("failed to pass monitoredBarrier",),
        (
            "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms",
            "[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms",
            "RuntimeError: Rank 1 failed to pass monitoredBarrier in 2000 ms",
        ),
        says="hang",
    ),
    Pattern(
        "gloo.monitored_barrier_blames",
        r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors while waiting",
        ("successfully reached monitoredBarrier",),
        (
            "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
            "Please check rank 0 logs for faulty rank.",
        ),
        says="hang",
    ),
    Pattern(
        "gloo.monitored_barrier_blames",
        r"Rank (?P<rank>\d+) timed out in monitoredBarrier after (?P<timeout>\d+) ?ms",
        ("timed out in monitoredBarrier",),
        (
            "[Rank 0]: Rank 0 timed out in monitoredBarrier after 30000 ms. No ranks successfully processed in monitoredBarrier.",
        ),
        says="hang",
    ),
)
