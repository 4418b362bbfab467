"""The cases of environment-differs."""

from __future__ import annotations

from unhang.model import Reading
from unhang.testing import Fires, Quiet, read, readings_case

_PROCESS, _VARIABLE = "environment.process", "environment.variable"


def _rank(rank: int, **values: str) -> list[Reading]:
    return [
        read(_PROCESS, rank=rank, variables=len(values)),
        *(read(f"{_VARIABLE} {name}", rank=rank, value=value) for name, value in values.items()),
    ]


CASES = {
    "environment-differs": (
        Fires(readings_case(*[_rank(r, **({"NCCL_PROTO": "LL"} if r == 2 else {})) for r in range(4)]), (2,)),
        Fires(
            readings_case(
                *[_rank(r, TORCH_DISTRIBUTED_DEBUG="DETAIL" if r == 0 else "OFF") for r in range(3)], world=3
            ),
            (0,),
        ),
        Fires(readings_case(*[_rank(r, LD_LIBRARY_PATH="/a" if r < 2 else "/b") for r in range(4)]), ()),
        Quiet(
            readings_case(
                *[
                    _rank(
                        r,
                        CUDA_VISIBLE_DEVICES=str(r),
                        NCCL_SOCKET_IFNAME=f"eth{r // 2}",
                        TORCHELASTIC_ERROR_FILE=f"/tmp/{r}/error.json",
                        **({"NCCL_DEBUG": "INFO"} if r == 0 else {}),
                        UCX_NET_DEVICES=f"mlx5_{r}:1",
                        TORCH_EXTENSIONS_DIR=f"/tmp/{r}",
                    )
                    for r in range(4)
                ]
            ),
            "what belongs to a rank or a host, or is only printed",
        ),
    ),
}
