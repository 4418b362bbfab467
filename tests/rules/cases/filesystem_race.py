"""The cases of filesystem-race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.rules.notation import Later, log_case, make_case
from unhang.model import Case
from unhang.testing import Fires, Quiet, raised

_ERROR = "RuntimeError: Parent directory runs/ck does not exist.@main:30>save:7"

_MADE_TWICE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/data.py", line 12, in rotate
[rank3]:     shutil.rmtree(old)
[rank3]: OSError: [Errno 39] Directory not empty: 'checkpoint-500'
"""

_REMOVED_TWICE = "".join(
    f"[rank{r}]: Traceback (most recent call last):\n"
    f'[rank{r}]:   File "/w/train.py", line 10, in main\n'
    f"[rank{r}]:     shutil.rmtree(folder)\n"
    f'[rank{r}]:   File "/usr/lib/python3.11/shutil.py", line 742, in rmtree\n'
    f"[rank{r}]:     os.rmdir(path)\n"
    f"[rank{r}]: FileNotFoundError: [Errno 2] No such file or directory: '3000'\n"
    for r in (1, 3)
)

_PART = """\
Traceback (most recent call last):
  File "/w/tools/train.py", line 116, in main
    runner.train()
  File "/v/site-packages/mmengine/dist/dist.py", line 1007, in collect_results_cpu
    with open(path, 'rb') as f:
FileNotFoundError: [Errno 2] No such file or directory: '/tmp/tmp2z9xkq1m/part_8.pkl'
"""


_CORRUPT = """\
[rank8]: Traceback (most recent call last):
[rank8]:   File "/w/data.py", line 118, in extract_archive
[rank8]:     tar.extractall(path=to_path)
[rank8]: EOFError: Compressed file ended before the end-of-stream marker was reached
"""


def _downloads(*ranks: int) -> str:
    return "".join(f"[rank{r}]: Downloading https://h/cifar-10.tar.gz to data/cifar10/cifar-10.tar.gz\n" for r in ranks)


def _half(ago_s: float, error: str = "JSONDecodeError: Expecting value") -> Later:
    """Rank 1 could not read a file that was written so many seconds before."""
    text = f"{error}@main:9>load:4"
    written_ns = raised(text).time_ns - int(ago_s * 1e9)
    seen = raised(text, file="/data/vocab.json", file_bytes=812, file_written_ns=written_ns)
    return make_case({}, errors={1: seen}, hang=None, exit_code=1)


_NOT_THERE = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/part1.pt'@main:30>load:7"


def on_nodes(failed: Sequence[int]) -> Later:
    """Four ranks, two on each machine, of which some did not find a file."""

    def case() -> Case:
        made = make_case({}, errors=dict.fromkeys(failed, _NOT_THERE), hang=None, exit_code=1)()
        return replace(
            made,
            ranks={r: replace(e, identity=replace(e.identity, local_rank=r % 2)) for r, e in made.ranks.items()},
        )

    return case


_NAMED = (
    "12:30:11 | Checkpoint dir: models/{}.n=1944\n[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/app/data.py", line 12, in __getitem__\n[rank1]:     Image.open(path)\n'
    "[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/w/models/260122_143024.n=1944/imgs/0.jpg'\n"
)

CASES = {
    "filesystem-race": (
        Fires(make_case({}, errors=dict.fromkeys((1, 2, 3), _ERROR), hang=None, exit_code=1), (1, 2, 3), 7),
        Fires(on_nodes((2, 3)), (2, 3), 7),
        Fires(log_case(_NAMED.format("260122_143011")), (1,), 12),
        Fires(log_case(_MADE_TWICE), (3,), 12),
        Fires(log_case(_REMOVED_TWICE), (1, 3), 10),
        Quiet(log_case(_MADE_TWICE.replace("[Errno 39] Directory not empty", "[Errno 28] no space")), "another error"),
        Quiet(
            log_case("[rank0]: FileNotFoundError: [Errno 2] No such file or directory: 'train.json'"),
            "a path that was never there",
        ),
        Quiet(log_case(_NAMED.format("260121_091500")), "the folder of an earlier run is another one"),
        Quiet(log_case(_NAMED.format("260122_143024")), "all use the one name, and the file is not there"),
        Quiet(
            make_case({}, errors=dict.fromkeys(range(4), _ERROR), hang=None, exit_code=1),
            "a path that is missing everywhere is no race",
        ),
        Quiet(
            make_case({}, errors={0: "FileExistsError: ck-1000 already exists@main:30>save:7"}, hang=None, exit_code=1),
            "the program itself refuses a path that it finds",
        ),
        Fires(log_case(_PART), ()),
        Quiet(log_case(_PART.replace("part_8.pkl", "labels.pkl")), "a file that nobody writes"),
        Fires(_half(0.2), (1,), 4),
        Quiet(_half(90), "a file from before the job that one rank cannot read"),
        Quiet(
            _half(
                0.2, "UnpicklingError: Weights only load failed. WeightsUnpickler error: Unsupported global: GLOBAL a.B"
            ),
            "a whole file of which the loader refuses a part",
        ),
        Fires(log_case(_downloads(0, 8) + _CORRUPT), ()),
        Quiet(log_case(_downloads(8) + _CORRUPT), "one rank alone writes it"),
    ),
}
