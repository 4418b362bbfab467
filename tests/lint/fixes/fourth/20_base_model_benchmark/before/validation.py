import os

from multi_process import gather_across_processes, split_across_processes


class Validation:
    def __init__(self, accelerator, config, pipeline, prompts):
        self.accelerator, self.config = accelerator, config
        self.pipeline, self.prompts = pipeline, prompts
        self.images = {}

    def benchmark_exists(self, name):
        return os.path.exists(os.path.join(self.config.output_dir, "benchmarks", name))

    def _use_distributed_validation(self):
        return self.config.validation_multigpu == "batch-parallel" and self.accelerator.num_processes > 1

    def run_validations(self, validation_type, step):
        use_distributed = self._use_distributed_validation()
        items = list(enumerate(self.prompts))
        local = split_across_processes(self.accelerator, items) if use_distributed else items
        payload = [(i, self.pipeline(p)) for i, p in local]
        if use_distributed:
            gathered = gather_across_processes(payload)
            payload = [entry for part in gathered for entry in part]
        self.images[validation_type] = dict(payload)

    def save_benchmark(self, name):
        if not self.accelerator.is_main_process:
            return
        folder = os.path.join(self.config.output_dir, "benchmarks", name)
        os.makedirs(folder, exist_ok=True)
        for i, image in self.images[name].items():
            image.save(os.path.join(folder, f"{i}.png"))
