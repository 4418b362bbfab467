"""Shared memory that ran out: NCCL's segments, torch's files, loader workers and the bus errors that follow."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

PATTERNS = (
    Pattern(
        "shm.no_space",
        r"failed to extend /dev/shm/\S+ to (?P<size>\d+) bytes, error: No space|posix_fallocate failed ?: No space left"
        r"|creating shared memory segment .{0,120}No space left|/dev/shm\S{0,120}.{0,60}No space left|No space left .{0,60}/dev/shm"
        r"|unable to write to file </?torch_\S{0,80}>: No space left|(?:ftruncate|fallocate)\S{0,20} failed.{0,40}No space left",
        ("No space left",),
        (
            "[2026-03-31 06:29:24] node-a:9847:6288 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-q3TTbA "
            "to 9637892 bytes, error: No space left on device (28)",
            "node-b:2143:2561 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "RuntimeError: unable to write to file </torch_29919_1396182366>: No space left on device (28)",
            "OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-1'",
        ),
        not_examples=("OSError: [Errno 28] No space left on device: '/data/ckpt.pt'",),
        says="crash",
    ),
    Pattern(
        "shm.torch_failed",
        r"unable to (?:open|allocate|mmap|resize|create|map) .{0,40}(?:shared memory|file <(?:filename not specified|/?torch_\S{1,80})>)"
        r".{0,120}(?P<error>Cannot allocate memory|No space left|Resource temporarily unavailable)",
        ("unable to mmap", "unable to allocate shared memory", "unable to resize", "unable to map", "unable to create"),
        (
            "RuntimeError: unable to mmap 352 bytes from file </torch_4711_1>: Cannot allocate memory (12)",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_4711_1>: Resource temporarily unavailable (11)",
        ),
        not_examples=("unable to mmap 4096 bytes from file </data/weights.bin>: Invalid argument (22)",),
        says="crash",
    ),
    Pattern(
        "shm.torch_failed",
        r"unable to write to file </?torch_\S{1,80}>(?!: No space)",
        ("unable to write to file",),
        ("RuntimeError: unable to write to file </torch_76_3625483894> at /pytorch/aten/src/TH/THAllocator.c:383",),
        not_examples=("unable to write to file </data/ckpt.pt>",),
        says="crash",
    ),
    Pattern(
        "shm.errno_28",
        r"\[Errno 28\] No space left on device$",
        ("[Errno 28]",),
        ("OSError: [Errno 28] No space left on device",),
        not_examples=("OSError: [Errno 28] No space left on device: '/data/ckpt.pt'",),
        says="crash",
    ),
    Pattern(
        "shm.semaphore",
        r"_multiprocessing\.SemLock\(|SemLock\.__init__\(",
        ("SemLock",),
        ("    sl = self._semlock = _multiprocessing.SemLock(",),
        not_examples=("class SemLock(object):",),
    ),
    Pattern(
        "shm.segment_failed",
        r"Error while creating shared memory segment (?P<segment>\S+) \(size (?P<size>\d+)\)(?!, error)"
        r"|failed to extend /dev/shm/\S+ to \d+ bytes(?!, error)",
        ("Error while creating shared memory segment", "failed to extend /dev/shm/"),
        (
            "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-250a7cc850ba9298-0-1-3 (size "
            "9637888)",
            "node-c:96:96 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes",
            "[E] RuntimeError: Error while creating shared memory segment /dev/shm/nccl-pZafXL (size 7340384)",
        ),
        not_examples=(
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9), error: Invalid argument (22)",
        ),
        says="crash",
    ),
    Pattern(
        "shm.worker_bus_error",
        r"Unexpected bus error encountered in worker|is killed by signal: Bus error|workers are out of shared memory",
        ("Unexpected bus error", "is killed by signal: Bus error", "out of shared memory"),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
            "RuntimeError: DataLoader worker (pid 611) is killed by signal: Bus error. It is possible that dataloader's workers "
            "are out of shared memory. Please try to raise your shared memory limit.",
        ),
        not_examples=("triton: out of shared memory, Required: 262144, Hardware limit: 101376",),
        says="crash",
    ),
    Pattern(
        "shm.bus_error",
        r"Caught signal 7 \(Bus error|Signal: Bus error \(7\)|Bus error \(core dumped\)|Fatal Python error: Bus error"
        r"|terminated with signal SIGBUS|\bSignal 7 \(SIGBUS\)|: Bus error$|Bus error \(signal 7\)|shutdown with signal 7\b|exited on signal 7 \(Bus error\)",
        ("Bus error", "SIGBUS", "shutdown with signal 7"),
        (
            "[node-a:1    :0:381] Caught signal 7 (Bus error: nonexistent physical address)",
            "[node-a:14] Signal: Bus error (7)",
            "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 7 rank=0",
            "  traceback : Signal 7 (SIGBUS) received by PID 2143",
            "srun: error: node-a: task 3: Bus error",
        ),
        not_examples=("RuntimeError: DataLoader worker (pid 611) is killed by signal: Bus error. It is possible",),
        says="crash",
    ),
    Pattern(
        "shm.bus_error_exit",
        r"exits with return code = -7\b|exitcode *: -7\b|[Ee]xit(?:ed with)? (?:code|status)[ :=]{1,3}(?:135|-7)\b|EXIT CODE: 135\b",
        ("return code = -7", "exitcode", "xit code", "xit status", "xited with code", "EXIT CODE"),
        (
            "[2023-12-15 09:54:54,716] [ERROR] [launch.py:321:sigkill_handler] ['/opt/env/bin/python', '-u', 'train.py', "
            "'--local_rank=3'] exits with return code = -7",
            "  exitcode  : -7 (pid: 2143)",
            "torch.distributed.elastic: failed (exitcode: -7) local_rank: 2 (pid: 2143) of binary: /usr/bin/python",
            "container exited with code 135",
        ),
        not_examples=("  exitcode  : 1 (pid: 2143)",),
        says="crash",
    ),
    Pattern(
        "shm.bus_error_local_rank",
        r"--local[_-]rank=(?P<local_rank>\d+)'.{0,400}exits with return code = -7\b"
        r"|\(exitcode: -7\) local_rank: (?P<failed>\d+)",
        ("return code = -7", "(exitcode: -7)"),
        (
            "['/opt/env/bin/python', '-u', 'train.py', '--local_rank=3', '--deepspeed', 'c.json'] exits with return code = -7",
            "failed (exitcode: -7) local_rank: 2 (pid: 2143) of binary: /usr/bin/python",
        ),
        not_examples=("exits with return code = -7",),
        says="crash",
    ),
    Pattern(
        "shm.default_limit",
        r"SHMEM allocation limit is set to the default of (?P<limit>\d+ ?MB)",
        ("SHMEM allocation limit",),
        ("NOTE: The SHMEM allocation limit is set to the default of 64MB.  This may be insufficient for PyTorch.",),
    ),
    Pattern(
        "shm.frame",
        r"\b(?:ncclShm(?:Open|Allocate)|shm(?:Send|Recv)(?:Setup|Connect)|ncclGroupEnd|ncclCommInitRank)\w*\(\)",
        ("ncclShm", "shmSend", "shmRecv", "ncclGroupEnd()", "ncclCommInitRank"),
        (
            " 2 0x000000000006f425 ncclShmOpen()  /nccl/src/misc/shmutils.cc:52",
            " 2 0x0000000000068d6c ncclGroupEnd()  ???:0",
        ),
        not_examples=("ncclCommInitRank comm 0x55f08a1c83d0 rank 0 nranks 1",),
    ),
)
