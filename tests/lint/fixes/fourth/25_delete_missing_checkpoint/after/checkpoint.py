from pathlib import Path
from shutil import rmtree


class FileCheckpointManager:
    def __init__(self, checkpoint_dir, gang):
        self._checkpoint_dir = Path(checkpoint_dir)
        self._root_gang = gang

    def get_step_numbers(self):
        return sorted(int(d.name[5:]) for d in self._checkpoint_dir.glob("step_*") if d.suffix == "")

    def delete_checkpoint(self, step_nr, *, missing_ok=False, preserve_model=False):
        if self._root_gang.rank == 0:
            step_dir = self._checkpoint_dir.joinpath(f"step_{step_nr}")
            try:
                rmtree(step_dir.with_suffix(".tmp"))
            except FileNotFoundError:
                pass

            if not step_dir.exists():
                if not missing_ok:
                    raise RuntimeError(f"Training step {step_nr} has no checkpoint.")

                self._root_gang.barrier()
                return

            if preserve_model:
                for pt_file in step_dir.glob("*.pt"):
                    if pt_file.is_dir() or pt_file.stem.startswith("model"):
                        continue
                    pt_file.unlink(missing_ok=True)
            else:
                rmtree(step_dir)

        self._root_gang.barrier()

    def keep_last_n_checkpoints(self, n, *, preserve_model=False):
        step_numbers = self.get_step_numbers()
        self._root_gang.barrier()
        for step_nr in step_numbers[:-n]:
            self.delete_checkpoint(step_nr, preserve_model=preserve_model)

    def begin_checkpoint(self, step_nr):
        self.delete_checkpoint(step_nr, missing_ok=True)
        if self._root_gang.rank == 0:
            self._checkpoint_dir.joinpath(f"step_{step_nr}.tmp").mkdir(parents=True)
        self._root_gang.barrier()
