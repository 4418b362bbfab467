"""The Python interpreter and what wraps it: exceptions on a line of their own, threads, fatal errors."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_NAME = r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Mismatch))"

PATTERNS = (
    Pattern(
        "python.error_line",
        rf"^(?:(?:E +)?|\S+ \|\|? )?{_NAME}: ?(?P<message>.*)",
        ("Error: ", "Error:", "Exception: ", "Exception:", "Interrupt", "Exit: ", "Iteration", "Mismatch: "),
        (
            "RuntimeError: The size of tensor a (77) must match the size of tensor b (248) at non-singleton dimension 1",
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
        not_examples=("  raise ValueError: x", "WARNING: Error: x"),
    ),
    Pattern(
        "python.interrupted",
        r"^KeyboardInterrupt\s*$",
        ("KeyboardInterrupt",),
        ("KeyboardInterrupt",),
        not_examples=("except KeyboardInterrupt:",),
    ),
    Pattern(
        "python.unhandled",
        r"(?:Unhandled|Uncaught) exception\b(?:[^<']*<class '(?P<type>[\w.]+))?",
        ("Unhandled exception", "Uncaught exception", "unhandled exception"),
        (
            "Unhandled exception <class 'ValueError'> in thread <_MainThread(MainThread, started 1402)>, proc 77.",
            "[rank1]: Uncaught exception. Shutting down.",
        ),
        says="crash",
    ),
    Pattern(
        "python.thread_exception",
        r"Exception in thread (?P<thread>[\w-]+)",
        ("Exception in thread ",),
        ("Exception in thread Thread-3 (_worker):", "Exception in thread Thread-1:"),
    ),
    Pattern(
        "python.fatal",
        r"Fatal Python error: (?P<what>.+)",
        ("Fatal Python error: ",),
        ("Fatal Python error: Segmentation fault", "Fatal Python error: Bus error"),
        says="crash",
    ),
    Pattern(
        "python.spawned",
        r"-- Process (?P<index>\d+) terminated with the following error:",
        ("terminated with the following error:",),
        ("-- Process 1 terminated with the following error:",),
        says="crash",
    ),
    Pattern(
        "python.rank0_first",
        r"(?:^\s+(?:async )?with (?:[\w.]+\.)?|, in )(?P<function>\w*(?:zero_first|main_process_first|rank_?0_first|master_first|"
        r"goes_first))\b",
        ("zero_first", "main_process_first", "rank0_first", "rank_0_first", "master_first", "goes_first"),
        (
            "    with torch_distributed_zero_first(rank):  # init dataset *.cache only once if DDP",
            '  File "/app/training_args.py", line 2281, in main_process_first',
            '    with training_args.main_process_first(desc="dataset map"):',
        ),
        not_examples=("def zero_first(rank): pass",),
        is_background=True,
    ),
    Pattern(
        "python.swallowed",
        r"Exception ignored in:? (?P<where>.+)",
        ("Exception ignored in",),
        ("Exception ignored in: <finalize object at 0x7f02a81d46; dead>",),
    ),
)
