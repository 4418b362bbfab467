class Placement:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def get_world_size(self, component):
        return self.sizes[component]

    def offset(self, component):
        total = 0
        for name, size in self.sizes.items():
            if name == component:
                return total
            total += size
        raise KeyError(component)
