"""Every remedy is tried in its cheapest form, and the page says of it what was seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness

FOLDER = Path(__file__).parents[2] / "docs" / "folklore"
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def seen() -> Results:
    """All experiments in one process that imports torch once."""
    command = [sys.executable, str(FOLDER / "run_all.py"), "--quick", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=55 * slowness())
    assert run.returncode == 0, run.stderr[-3000:]
    results: Results = json.loads(run.stdout)
    return results


@pytest.fixture(scope="module")
def page() -> str:
    return (FOLDER / "README.md").read_text()


def test_expand_and_repeat_train_alike_and_repeat_copies(seen: Results) -> None:
    told = seen["expand_to_repeat"]
    assert told["ranks_that_came_to_the_end_with_expand"] == 2
    assert told["parameters_bit_identical_after_training_on_2_ranks"]
    assert told["largest_difference_of_gradients"] == 0
    assert told["mb_repeat"] == told["batch"] * told["mb_expand"]


def test_a_longer_timeout_only_helps_a_rank_that_comes(seen: Results) -> None:
    told = seen["longer_timeout"]
    assert told["rank_never_comes_short_fails"]
    assert told["rank_never_comes_long_fails"]
    assert told["rank_never_comes_told_after_s_long"] >= told["long_timeout_s"] > told["short_timeout_s"]
    assert told["rank_never_comes_told_after_s_short"] < told["rank_never_comes_told_after_s_long"]
    assert told["slow_rank0_short_fails"]
    assert not told["slow_rank0_long_fails"]


def test_blocking_wait_changes_nothing_on_gloo(seen: Results) -> None:
    told = seen["blocking_wait"]
    assert told["hangs_without"]
    assert told["hangs_with"]
    assert min(told["told_after_s_without"], told["told_after_s_with"]) >= 0.9 * told["timeout_s"]


def test_fewer_workers_pickle_less_and_are_stuck_as_well(seen: Results) -> None:
    told = seen["fewer_workers"]
    assert told["pickled_mb_4_workers"] == pytest.approx(4 * told["pickled_mb_1_worker"])
    assert told["pickled_mb_4_workers_if_each_opens_the_file"] < told["pickled_mb_1_worker"] / 100
    assert told["batches_before_a_stuck_sample_1_worker"] == told["batches_before_a_stuck_sample_4_workers"] == 5


def test_switches_of_nccl_change_nothing_on_gloo(seen: Results) -> None:
    told = seen["p2p_ib_off"]
    assert told["rank_never_comes_fails_without"]
    assert told["rank_never_comes_fails_with"]
    assert told["same_sum_with_and_without"]


def test_barriers_move_a_hang_and_order_files(seen: Results) -> None:
    told = seen["more_barriers"]
    assert told["hangs_without_barriers"].startswith("all_reduce of step")
    assert told["hangs_with_barriers"].startswith("barrier of step")
    assert told["file_read_without_barrier"] == "FileNotFoundError"
    assert told["file_read_with_barrier"] == "read"


def test_find_unused_parameters_mends_that_and_nothing_else(seen: Results) -> None:
    told = seen["find_unused_parameters"]
    assert "Expected to have finished reduction" in told["unused_head_without"]
    assert told["unused_head_with"] == "trains"
    assert told["batch_less_on_rank_1_fails_without"]
    assert told["batch_less_on_rank_1_fails_with"]


def test_retain_graph_false_is_the_default_and_breaks_two_losses(seen: Results) -> None:
    told = seen["retain_graph"]
    assert told["same_gradient_as_default"]
    assert told["two_losses_retained"] == "trains"
    assert "backward through the graph a second time" in told["two_losses_not_retained"]
    assert told["sum_of_losses_gives_the_same"]


def test_without_the_broadcast_replicas_part_and_the_wait_moves(seen: Results) -> None:
    told = seen["no_parameter_broadcast"]
    assert told["difference_with_broadcast_other_seeds"] == 0
    assert told["difference_without_broadcast_other_seeds"] > 0.01
    assert told["difference_without_broadcast_same_seed"] == 0
    assert told["rank_never_comes_fails_in_with_broadcast"] == "building DDP"
    assert told["rank_never_comes_fails_in_without_broadcast"] == "first backward"


def test_the_page_tells_of_every_experiment(seen: Results, page: str) -> None:
    assert not [name for name in seen if f"({name}.py)" not in page]


def test_the_figures_of_the_page_are_those_of_the_results(page: str) -> None:
    told: Results = json.loads((FOLDER / "results.json").read_text())
    expand, loader, built = (told[name] for name in ("expand_to_repeat", "fewer_workers", "no_parameter_broadcast"))
    quoted = [
        f"{expand['mb_repeat']:.0f} MB instead of {expand['mb_expand']:.1f} MB",
        f"{100 * (expand['time_of_repeat_over_expand'] - 1):.0f} % more processor time",
        f"{loader['pickled_mb_4_workers']:.0f} MB for four workers, {loader['pickled_mb_1_worker']:.0f} MB for one",
        f"{told['more_barriers']['microseconds_per_barrier_2_ranks']:.0f} us a barrier",
        f"{100 * (told['find_unused_parameters']['step_time_with_over_without_60_layers'] - 1):.0f} % more time",
        f"{built['ms_to_build_with_broadcast_16_mb']:.0f} ms",
        f"{built['difference_without_broadcast_other_seeds']:.2f} apart",
        f"after {told['longer_timeout']['long_timeout_s']:g} s instead of {told['longer_timeout']['short_timeout_s']:g} s",
    ]
    assert not [text for text in quoted if text not in page]
