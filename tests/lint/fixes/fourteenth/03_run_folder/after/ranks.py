import functools
import os


def zero_only(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        if int(os.environ.get("RANK", "0")) == 0:
            return fn(*args, **kwargs)
        return None

    return inner
