"""`python -m unhang`, which also `torchrun -m unhang` starts."""

from __future__ import annotations

from unhang.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
