import torch
import torch.distributed as dist


class LoggerHook:
    def __init__(self, interval=10):
        self.interval = interval

    def before_epoch(self, runner):
        runner.log_buffer.clear()

    def after_train_iter(self, runner):
        if (runner.inner_iter + 1) % self.interval == 0:
            runner.log_buffer.average(self.interval)
        if runner.log_buffer.ready:
            self.log(runner)
            runner.log_buffer.clear_output()

    def after_train_epoch(self, runner):
        if runner.log_buffer.ready:
            self.log(runner)


class TextLoggerHook(LoggerHook):
    def log(self, runner):
        log_str = f"Epoch [{runner.epoch + 1}][{runner.inner_iter + 1}/{len(runner.data_loader)}]\t"
        if "time" in runner.log_buffer.output:
            log_str += f"time: {runner.log_buffer.output['time']:.3f}, "
        if runner.mode == "train" and torch.cuda.is_available():
            mem = torch.cuda.max_memory_allocated()
            mem_mb = torch.tensor([mem / (1024 * 1024)], dtype=torch.int, device="cuda")
            if runner.world_size > 1:
                dist.reduce(mem_mb, 0, op=dist.ReduceOp.MAX)
            log_str += f"memory: {mem_mb.item()}, "
        items = [f"{k}: {v:.4f}" for k, v in runner.log_buffer.output.items() if k not in ("time", "data_time")]
        runner.logger.info(log_str + ", ".join(items))
