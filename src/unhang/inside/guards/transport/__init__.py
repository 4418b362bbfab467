"""How the ranks talk, beside the job's own collectives, each way with a limit.

`Board`: what each rank says of itself, for all to read at any time. `Exchange`: one value of each rank for all ranks at the same
place; `gather` over the board, `start` for every step. `Worker`: the thread in which a guard waits, so that the training never does.
"""

from __future__ import annotations

from unhang.inside.guards.transport.board import Board as Board
from unhang.inside.guards.transport.exchange import Exchange as Exchange
from unhang.inside.guards.transport.exchange import gather as gather
from unhang.inside.guards.transport.exchange import start as start
from unhang.inside.guards.transport.worker import Worker as Worker
