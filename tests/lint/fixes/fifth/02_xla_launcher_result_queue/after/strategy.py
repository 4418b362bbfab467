import torch_xla.core.xla_model as xm


class XLAStrategy:
    def __init__(self, devices):
        self.devices = devices

    @property
    def num_processes(self):
        return len(self.devices)

    @property
    def local_rank(self):
        return xm.get_local_ordinal()

    @property
    def ordinal_on_host(self):
        return xm.get_local_ordinal()

    def barrier(self, name):
        xm.rendezvous(name)
