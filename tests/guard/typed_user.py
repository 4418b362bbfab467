"""A training script as a user with a strict type checker writes it; test_typed_user.py has it checked."""

import unhang


@unhang.record
def main(steps: int, name: str = "run") -> float:
    with unhang.process_group("gloo", timeout="10m", config={"steps": steps}) as job:
        rank: int = job.rank
        size: int = job.world_size
        limit_s: float = job.timeout_s
        backend: str = job.backend
        print(rank, size, limit_s, backend, name, job.device)
    return 0.0


result: float = main(3, name="first")
if unhang.__version__ == "wrong":
    main("3")  # type: ignore[arg-type]
    unhang.process_group(timeout=[])  # type: ignore[arg-type]
    with unhang.process_group() as wrong:
        wrong.rnak  # type: ignore[attr-defined]  # noqa: B018
