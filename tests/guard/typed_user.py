"""A training script as a user with a strict type checker writes it, with every public name; test_typed_user.py has it checked."""

from collections.abc import Sequence
from typing import Any

import unhang
from unhang.errors import UnhangError


def sizes(data: Sequence[int], model: Any, optimizer: Any) -> int:
    total = 0
    findings: list[unhang.LoaderFinding] = unhang.check_loader(data)
    print([finding.text for finding in findings])
    learning = unhang.check_learning(model, optimizer)
    with unhang.check_replicas(model, every=50) as replicas, unhang.heartbeat(every=10, limit="2m") as heart:
        for number in unhang.align(data, mode="stop_together", name="train"):
            total += number + 1
            agreement = unhang.together(number > 3, name="stop")
            ranks: tuple[int, ...] = agreement.ranks
            if agreement.any or agreement.all or ranks:
                break
            with heart.phase("data"), unhang.section("step", limit_s=60, on_overrun="tell"):
                open_names: list[str] = [inside.name for inside in unhang.sections()]
            heart.step(loss=1.0, note=str(open_names))
        for batch in unhang.watch_loader(data, limit_s=10):
            print(batch)
        print(replicas.check_now())
    learning.close()
    return total


def causes(reports: Sequence[str]) -> list[str]:
    try:
        return [finding.cause for finding in unhang.diagnose(reports).findings]
    except UnhangError as error:
        return [str(error)]


@unhang.section("evaluation", limit_s="10m")
def evaluate(step: int) -> float:
    return step / 2


@unhang.record
def main(steps: int, name: str = "run") -> float:
    unhang.install()
    try:
        with unhang.process_group("gloo", timeout="10m", config={"steps": steps}) as job:
            rank: int = job.rank
            size: int = job.world_size
            limit_s: float = job.timeout_s
            backend: str = job.backend
            is_same: bool = unhang.assert_same("steps", steps)
            print(rank, size, limit_s, backend, name, job.device, is_same)
    except (unhang.PeerFailed, unhang.RanksDiffer) as error:
        print(error.help_text, error.exit_code)
    except unhang.SectionOverran:
        raise
    except UnhangError as error:
        raise SystemExit(error.exit_code) from error
    return evaluate(3)


def publish(sync: unhang.WeightSync) -> None:
    try:
        with sync.paused():
            pass
    except (unhang.WeightSyncFailed, unhang.GroupInUse) as error:
        print(error)


if unhang.__version__ == "wrong":
    result: float = main(3, name="first")
    doubled: float = evaluate(3)
    main("3")  # type: ignore[arg-type]
    evaluate("3")  # type: ignore[arg-type]
    unhang.process_group(timeout=[])  # type: ignore[arg-type]
    unhang.align([1], mode="stop")  # type: ignore[arg-type]
    unhang.section("a", on_overrun="die")  # type: ignore[arg-type]
    with unhang.process_group() as wrong:
        wrong.rnak  # type: ignore[attr-defined]  # noqa: B018
