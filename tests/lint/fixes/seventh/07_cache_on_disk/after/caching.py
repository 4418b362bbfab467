import os
import pickle

from mpi4py import MPI


def disk_cached(func, folder):
    def wrapper(key, comm=MPI.COMM_WORLD):
        path = os.path.join(folder, key)
        cache_hit = os.path.exists(path)
        cache_hit = comm.bcast(cache_hit, root=0)
        if cache_hit:
            with open(path, "rb") as file:
                return pickle.load(file)
        value = func(key) if comm.rank == 0 else None
        if comm.rank == 0:
            with open(path, "wb") as file:
                pickle.dump(value, file)
        return comm.bcast(value, root=0)

    return wrapper
