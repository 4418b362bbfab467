from dataclasses import dataclass, field


@dataclass
class Crate:
    room: int
    items: list = field(default_factory=list)

    def put(self, length):
        self.items.append(length)
        self.room -= length


def pack(lengths, room):
    crates = []
    for length in sorted(lengths, reverse=True):
        if length > room:
            raise ValueError(f"a sequence of {length} tokens does not go into a crate of {room}")
        crate = next((c for c in crates if c.room >= length), None)
        if crate is None:
            crate = Crate(room)
            crates.append(crate)
        crate.put(length)
    return crates


def memory_of(crates, room, bytes_per_token):
    return max((room - c.room for c in crates), default=0) * bytes_per_token
