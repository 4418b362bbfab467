"""A module whose body waits for a thread; with "sound" that thread does not import the module."""

import sys
from concurrent.futures import ThreadPoolExecutor


def rows(number):
    if sys.argv[2:] != ["sound"]:
        from keeps_in_body import SCALE  # imports

        return number * SCALE
    return number


SCALE = 2
with ThreadPoolExecutor(1) as pool:
    TABLE = list(pool.map(rows, range(3)))
