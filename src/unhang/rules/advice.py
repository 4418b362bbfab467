"""Fixes that several rules give."""

from __future__ import annotations

from unhang.model import Fix

SEE_IT = Fix(
    "See the calls of every rank at the next stop",
    command="unhang run -- <the same command>",
    verify="the report names the rank, its line, and the call that it should have made",
    undo="nothing is changed",
)
RECORD_IT = Fix(
    "Or keep torch's own record, where the job cannot be started under unhang",
    setting="TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_ "
    "(torch < 2.10: TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
    verify="unhang diagnose /shared/dumps",
    undo="unset the variables",
)
NO_LONGER_TIMEOUT = Fix(
    "Does not help: a longer timeout",
    setting="leave the timeout as it is",
    verify="public jobs with this cause failed again after 1.5, 2, 5 and 12 hours",
    undo="nothing is changed",
)
EVERY_RANK_CALLS = Fix(
    "Make the call on every rank, and only the writing on one",
    patch="state = gather_full_state(model)      # every rank\nif rank == 0:\n    write(state)                      # one rank",
    verify="unhang run -- <the same command>: outcome clean",
    undo="revert the edit",
)
EQUAL_BATCHES = Fix(
    "Give every rank the same number of batches, or end together",
    patch="DistributedSampler(..., drop_last=True); with model.join(): ...   # or decide together: all_reduce(MIN) of 'has data'",
    verify="print the number of batches of each rank: equal",
    undo="revert the edit",
)
PAD = Fix(
    "Pad to the largest, or gather with sizes",
    patch="n = torch.tensor([x.shape[0]]); dist.all_reduce(n, op=MAX); x = F.pad(x, ...)   # then cut after the gather",
    verify="unhang run -- <the same command>: outcome clean",
    undo="revert the edit",
)
