import logging

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, accelerator, config, validation, loop):
        self.accelerator, self.config = accelerator, config
        self.validation, self.loop = validation, loop

    def init_benchmark_base_model(self):
        if self.config.disable_benchmark or self.validation is None:
            return
        if self.validation.benchmark_exists("base_model"):
            return
        if self.config.validation_multigpu != "batch-parallel" and not self.accelerator.is_main_process:
            return
        logger.info("Benchmarking base model for comparison.")
        self.validation.run_validations(validation_type="base_model", step=0)
        self.validation.save_benchmark("base_model")

    def run(self):
        self.init_benchmark_base_model()
        self.accelerator.wait_for_everyone()
        self.loop()
