from pathlib import Path

from parts import KINDS


class Registry:
    """All parts of a run that have a journal in the scratch folder of this node."""

    def __init__(self, scratch: Path, device):
        self.parts = {}
        for path in scratch.iterdir():
            kind = KINDS.get(path.suffix.lstrip("."))
            if kind is not None:
                self.parts[path.name] = kind(path, device)

    def gather(self):
        state = {}
        for key, part in self.parts.items():
            state[key] = part.state_dict()
        return state
