"""The cases of not-placed."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_SAYS = "(autoscaler +{}s) Error: No available node types can fulfill resource request {}. Add suitable node types to this cluster.\n"
_GPU = "{'CPU': 1.0, 'GPU': 1.0}"
_TUNE = (
    "2022-11-02 09:58:31,902	WARNING insufficient_resources_manager.py:128 -- Ignore this message if the cluster is autoscaling. "
    "You asked for 9.0 cpu and 8.0 gpu per trial, but the cluster only has 20.0 cpu and 1.0 gpu. Stop the tuning job\n"
)
_PENDING = "| TorchTrainer_c40be_00000 | PENDING  |       |\n"
_STATUS = "Usage:\n 0.0/20.0 CPU\n 0B/6.32GiB memory\n"

_CLAIMED = (
    "(scheduler +{}s) Warning: The following resource request cannot be scheduled right now: {{'CPU': 1.0, 'GPU': 1.0}}. This is likely due to "
    "all cluster resources being claimed by actors.\n"
)

CASES = {
    "not-placed": (
        Fires(log_case(_TUNE + _PENDING), (), cause="launcher-misuse"),
        Fires(log_case(_SAYS.format(17, _GPU) + _SAYS.format(52, _GPU) + _STATUS), (), cause="misconfigured-env"),
        Fires(log_case(_SAYS.format(17, _GPU) + _SAYS.format(52, _GPU)), (), cause="launcher-misuse"),
        Quiet(
            log_case(_SAYS.format(17, _GPU) * 2 + "{'loss': 2.0, 'step': 10}\n{'loss': 1.9, 'step': 20}\n"),
            "the cluster grew, and the job moved",
        ),
        Quiet(log_case(_SAYS.format(17, _GPU) + _STATUS), "said once, and nothing waits"),
        Fires(log_case("".join(_CLAIMED.format(n) for n in (14, 49, 84))), (), cause="launcher-misuse"),
        Quiet(log_case("".join(_CLAIMED.format(n) for n in (14, 49))), "others may end soon"),
        Quiet(
            log_case(_SAYS.format(17, "{'GPU': 1.0, 'node:10.0.0.9': 0.001}") * 2),
            "a node by a name that Ray does not know: another cause",
        ),
    ),
}
