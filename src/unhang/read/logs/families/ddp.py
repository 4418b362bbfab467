"""DistributedDataParallel's own errors: the reducer's and the check of the parameters."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "ddp.unused",
        r"Expected to have finished reduction in the prior iteration",
        ("Expected to have finished reduction",),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",),
        says="crash",
    ),
    Pattern(
        "ddp.unused_names",
        r"Parameters which did not receive grad for rank (?P<rank>\d+): ?(?P<names>[^\n]*)",
        ("which did not receive grad for rank",),
        ("Parameters which did not receive grad for rank 0: head.weight, head.bias",),
        not_examples=("Parameter indices which did not receive grad for rank 0: 1",),
        says="crash",
    ),
    Pattern(
        "ddp.unused_indices",
        r"Parameter indices which did not receive grad for rank (?P<rank>\d+): ?(?P<indices>[\d ]*)",
        ("which did not receive grad for rank",),
        ("Parameter indices which did not receive grad for rank 0: 1 4 5 ...",),
        says="crash",
    ),
    Pattern(
        "ddp.ready_twice",
        r"Expected to mark a variable ready only once|has been marked as ready twice|marked ready twice",
        ("to mark a variable ready only once", "marked as ready twice", "marked ready twice"),
        (
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons:",
            "Parameter at index 2 with name head.weight has been marked as ready twice.",
        ),
        says="crash",
    ),
    Pattern(
        "ddp.inconsistent_params",
        r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has (?P<own>\d+) params, while rank (?P<peer>\d+) has "
        r"inconsistent (?P<other>\d+) params",
        ("DDP expects same model across all ranks",),
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 2 has 128 params, while rank 0 has inconsistent 0 "
            "params.",
        ),
        says="crash",
    ),
    Pattern(
        "ddp.param_shape",
        r"(?:\[(?P<rank>\d+)\]: )?params?\[(?P<index>\d+)\] in this process with sizes (?P<own>\[[\d, ]*\]) appears not to match "
        r"(?:sizes|strides) of the same param in process (?P<peer>\d+)",
        ("appears not to match",),
        (
            "RuntimeError: [1]: params[3] in this process with sizes [10, 20] appears not to match sizes of the same param in "
            "process 0.",
        ),
        says="crash",
    ),
    Pattern(
        "ddp.static_graph",
        r"Your training graph has changed in this iteration",
        ("Your training graph has changed",),
        (
            "RuntimeError: Your training graph has changed in this iteration, e.g., one parameter is unused in first iteration",
        ),
        says="crash",
    ),
)
