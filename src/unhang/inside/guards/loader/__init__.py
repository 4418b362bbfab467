"""What will go wrong with a data loader (`check_loader`), and what does (`watch_loader`)."""

from __future__ import annotations

from unhang.inside.guards.loader.check import LoaderFinding as LoaderFinding
from unhang.inside.guards.loader.check import check_loader as check_loader
from unhang.inside.guards.loader.watch import watch_loader as watch_loader
