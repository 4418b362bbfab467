import torch

from grad_pipeline import GradReducePipeline


class ShardedModule(torch.nn.Module):
    def __init__(self, module, parameter_groups, group):
        super().__init__()
        self.module = module
        self.grad_reduce_pipeline = GradReducePipeline(parameter_groups, group)
        self._params_require_handle_grad = set()
        for unit in module.children():
            unit.register_full_backward_hook(self._post_backward)

    def forward(self, *args):
        for params in self.grad_reduce_pipeline.parameter_groups:
            self._params_require_handle_grad |= set(params)
        return self.module(*args)

    def _post_backward(self, unit, *unused):
        params = [p for p in unit.parameters() if p in self._params_require_handle_grad]
        self.grad_reduce_pipeline.reduce_gradients(params)
        self._params_require_handle_grad -= set(params)

    def finish_grad_sync(self):
        self.grad_reduce_pipeline.reduce_gradients(self._params_require_handle_grad)
        self._params_require_handle_grad = set()
        self.grad_reduce_pipeline.wait_for_previous_grad_reduce(0)
