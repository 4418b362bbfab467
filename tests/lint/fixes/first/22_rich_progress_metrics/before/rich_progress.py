from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from pytorch_lightning.callbacks.progress.base import ProgressBarBase


class MetricsTextColumn(ProgressColumn):
    def __init__(self, trainer, pl_module):
        self._trainer = trainer
        self._pl_module = pl_module
        self._tasks = {}
        self._current_task_id = 0
        super().__init__()

    def render(self, task) -> Text:
        if not self._trainer.training:
            return Text("")
        if self._trainer.training and task.id != self._current_task_id:
            if self._current_task_id in self._tasks:
                self._tasks[task.id] = self._tasks[self._current_task_id]
            self._current_task_id = task.id

        callback = getattr(self._trainer, "progress_bar_callback", None)
        if callback:
            metrics = callback.get_metrics(self._trainer, self._pl_module)
        else:
            metrics = self._trainer.progress_bar_metrics

        text = ""
        for k, v in metrics.items():
            text += f"{k}: {round(v, 3) if isinstance(v, float) else v} "
        self._tasks[task.id] = Text(text, justify="left")
        return self._tasks[task.id]


class RichProgressBar(ProgressBarBase):
    def __init__(self, refresh_rate_per_second=10):
        super().__init__()
        self._refresh_rate_per_second = refresh_rate_per_second
        self.progress = None
        self.main_id = None

    def on_train_start(self, trainer, pl_module):
        super().on_train_start(trainer, pl_module)
        self.progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MetricsTextColumn(trainer, pl_module),
            refresh_per_second=self._refresh_rate_per_second,
        )
        self.progress.start()
        self.main_id = self.progress.add_task("Training", total=self.total_train_batches)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.progress.update(self.main_id, advance=1)

    def on_train_end(self, trainer, pl_module):
        self.progress.stop()
