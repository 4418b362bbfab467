"""The cases of waits-for-input."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_ASKS = "wandb: (3) Don't visualize my results\nwandb: Enter your choice: \n"
_STORE = (
    "[rank{0}]: torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
    "key-value store by key '0', but store->get('0') got error: Socket Timeout\n"
)
_WAITS = timeouts((1, 3, "ALLREDUCE", 1), (2, 3, "ALLREDUCE", 1))

CASES = {
    "waits-for-input": (
        Fires(log_case(_ASKS + _STORE.format(1) + _STORE.format(2)), (0,)),
        Fires(log_case(_ASKS + _WAITS), (0,)),
        Fires(log_case("[rank3]: (Pdb) \n" + _WAITS), (3,)),
        Quiet(
            log_case("wandb: Enter your choice: 3\nwandb: You chose 'Don't visualize my results'\n" + _WAITS),
            "it was answered",
        ),
        Quiet(
            log_case(_ASKS + "step 1 loss 2.0\nstep 2 loss 1.9\n" + _WAITS),
            "the training went on behind it",
        ),
        Quiet(log_case(_ASKS), "nothing hangs"),
    ),
}
