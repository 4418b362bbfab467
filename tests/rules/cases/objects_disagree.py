"""The cases of objects-disagree."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_GATHERED = """\
Traceback (most recent call last):
  File "/w/train.py", line 12, in main
    stats = all_gather_list(mine)
  File "/w/fairseq/distributed_utils.py", line 174, in all_gather_list
    result.append(pickle.loads(bytes(out)))
_pickle.UnpicklingError: invalid load key, '\\x00'.
"""

_SIZE = """\
Traceback (most recent call last):
  File "/w/train.py", line 12, in main
    for batch in loader:
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 2603, in broadcast_object_list
    object_tensor = torch.empty(
RuntimeError: Trying to create tensor with negative dimension -686245457367107674: [-686245457367107674]
"""

_HUGE = _SIZE.replace(
    _SIZE.splitlines()[-1], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."
)

CASES = {
    "objects-disagree": (
        Fires(log_case(_GATHERED), (), 174),
        Fires(log_case(_HUGE), (), 12),
        Quiet(log_case(_HUGE.replace("more than 1EB memory.", "2.00 GiB.")), "an object that did not fit"),
        Fires(log_case(_SIZE), (), 12),
        Quiet(log_case(_GATHERED.replace("all_gather_list", "load_cache")), "a file that cannot be unpickled"),
        Quiet(
            log_case("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB\n" + _GATHERED),
            "a rank ran out of memory before",
        ),
    ),
}
