"""Environment variables are found wherever a job sets them, and no file is trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unhang.errors import UnreadableInput
from unhang.read.environment import Settings, beliefs, in_scope, rebuild, tables, variables, whose_variable
from unhang.read.environment.sources import (
    files_below,
    of_pid,
    of_process,
    read_notebook,
    read_python,
    read_source,
    read_sources,
)
from unhang.read.environment.texts import read_config, read_log, read_shell


def pairs(settings: Settings) -> list[tuple[str, str | None, int | None]]:
    return [(a.name, a.value, a.line) for a in settings.assignments]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO")]),
        (
            "export NCCL_DEBUG=INFO NCCL_IB_DISABLE='1' # NCCL_ALGO=Ring",
            [("NCCL_DEBUG", "INFO"), ("NCCL_IB_DISABLE", "1")],
        ),
        ("# export NCCL_DEBUG=INFO", []),
        ('NCCL_SOCKET_IFNAME="eth0,eth1" torchrun x.py', [("NCCL_SOCKET_IFNAME", "eth0,eth1")]),
        ("export NCCL_SOCKET_IFNAME==eth0", [("NCCL_SOCKET_IFNAME", "=eth0")]),
        ("#SBATCH --export=ALL,NCCL_DEBUG=WARN,NCCL_ALGO=Ring", [("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")]),
        ("mpirun -x NCCL_IB_TIMEOUT=22 -x PATH -np 8 python x.py", [("NCCL_IB_TIMEOUT", "22")]),
        (
            "docker run -e NCCL_P2P_DISABLE=1 --env=NCCL_DEBUG=INFO image",
            [("NCCL_P2P_DISABLE", "1"), ("NCCL_DEBUG", "INFO")],
        ),
        (
            "ENV NCCL_DEBUG=INFO CUDA_DEVICE_ORDER=PCI_BUS_ID",
            [("NCCL_DEBUG", "INFO"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
        ),
        ("ENV NCCL_DEBUG INFO", [("NCCL_DEBUG", "INFO")]),
        ("ARG NCCL_VERSION=2.20", []),
        ("setenv NCCL_DEBUG INFO", [("NCCL_DEBUG", "INFO")]),
        (": ${NCCL_DEBUG:=WARN}", [("NCCL_DEBUG", "WARN")]),
        ("export MASTER_PORT=${MASTER_PORT:-29501}", [("MASTER_PORT", "29501")]),
        ("export CUDA_VISIBLE_DEVICES=$LOCAL_RANK", [("CUDA_VISIBLE_DEVICES", None)]),
        ("export MASTER_PORT=$((29500 + SLURM_JOB_ID % 100))", [("MASTER_PORT", None)]),
        ('echo "set NCCL_DEBUG=INFO to see more"', []),
        ('echo "NCCL_DEBUG=INFO" >> .deepspeed_env', [("NCCL_DEBUG", "INFO")]),
        ('if [ "$NCCL_DEBUG" == "INFO" ]; then', []),
        ("python x.py --NCCL_DEBUG=INFO", []),
        ("export MY_OWN=1 HF_TOKEN=hf_abc", []),
    ],
)
def test_a_shell_line(line: str, expected: list[tuple[str, str | None]]) -> None:
    assert [(a.name, a.value) for a in read_shell(line).assignments] == expected


def test_continued_lines_count_from_their_first_and_unset_takes_back() -> None:
    settings = read_shell("\nmpirun -x NCCL_ALGO=Ring \\\n  -x NCCL_PROTO=LL \\\n  python x.py\nunset NCCL_ALGO\n")
    assert pairs(settings) == [("NCCL_PROTO", "LL", 2)]


def test_a_launcher_keeps_its_own_options_and_not_those_of_the_script() -> None:
    settings = read_shell("srun torchrun --standalone --nproc_per_node=4 --master_port 1 train.py --master_addr x\n")
    assert dict(settings.launches[0].options) == {"standalone": "", "nproc-per-node": "4", "master-port": "1"}


def test_options_in_variables_of_the_script_are_followed() -> None:
    text = """
NNODES=28
ARGS="
    --nnodes $NNODES \\
    --node_rank $NODE_RANK
    --master_addr localhost
"
LIST=(
  --standalone
  --master-port 1
)
export NCCL_DEBUG=INFO
torchrun $ARGS train.py
torchrun "${LIST[@]}" train.py
if x; then N=2; else N=4; fi
N=2
N=4
torchrun --nproc-per-node $N train.py
"""
    settings = read_shell(text)
    assert [dict(x.options) for x in settings.launches] == [
        {"nnodes": "28", "node-rank": "$NODE_RANK", "master-addr": "localhost"},
        {"standalone": "", "master-port": "1"},
        {"nproc-per-node": "$N"},
    ]
    assert pairs(settings) == [("NCCL_DEBUG", "INFO", 12)]


def test_a_name_that_the_script_uses_itself_is_told() -> None:
    settings = read_shell(
        "NCCL_TIMEOUT=3600\npython x.py --timeout $NCCL_TIMEOUT\nexport NCCL_DEBUG=${NCCL_DEBUG:-INFO}\n"
    )
    assert settings.mentions == {"NCCL_TIMEOUT"}


def test_python_code() -> None:
    text = """
import os
os.environ["NCCL_TIMEOUT"] = "1800"
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(2000))
os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)
os.environ.update({"NCCL_DEBUG": "INFO"}, NCCL_ALGO="Ring")
subprocess.run(command, env={**os.environ, "NCCL_PROTO": "LL"})
TABLE = {"NCCL_IB_DISABLE": "what it means"}
limit = os.environ.get("NCCL_MY_LIMIT")
"""
    settings = read_python(text)
    assert pairs(settings) == [
        ("NCCL_TIMEOUT", "1800", 3),
        ("TORCH_FR_BUFFER_SIZE", "2000", 4),
        ("CUDA_VISIBLE_DEVICES", None, 5),
        ("NCCL_DEBUG", "INFO", 6),
        ("NCCL_ALGO", "Ring", 6),
        ("NCCL_PROTO", "LL", 7),
    ]
    assert settings.assignments[1].is_default
    assert settings.assignments[2].expression == "str(local_rank)"
    assert settings.mentions == {"NCCL_MY_LIMIT"}


def test_python_that_cannot_be_parsed_is_read_line_by_line() -> None:
    settings = read_python("print 'old'\nos.environ['NCCL_DEBUG'] = 'INFO'\nos.environ['NCCL_ALGO'] = pick()\n")
    assert pairs(settings) == [("NCCL_DEBUG", "INFO", 2), ("NCCL_ALGO", None, 3)]


def test_a_notebook() -> None:
    settings = read_notebook(
        '{"cells": [{"source": [\n"os.environ[\\"NCCL_DEBUG\\"] = \\"INFO\\"\\n",\n"%env NCCL_ALGO=Ring\\n"]}]}'
    )
    assert pairs(settings) == [("NCCL_DEBUG", "INFO", 2), ("NCCL_ALGO", "Ring", 3)]


def test_yaml_of_several_kinds() -> None:
    text = """
env:
  - name: NCCL_DEBUG
    value: "INFO"   # why
  - name: NCCL_ALGO
    valueFrom: {configMapKeyRef: {name: x}}
  - {name: NCCL_IB_DISABLE, value: "1"}
environment:
  NCCL_P2P_DISABLE: 1
  - NCCL_PROTO=LL
  MASTER_ADDR: ${head_ip}
run: |
  export NCCL_SOCKET_IFNAME=eth0
  torchrun --standalone \\
    --master-port 1 train.py
"""
    settings = read_config(text)
    assert [(a.name, a.value) for a in settings.assignments] == [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_PROTO", "LL"),
        ("MASTER_ADDR", None),
        ("NCCL_SOCKET_IFNAME", "eth0"),
    ]
    assert dict(settings.launches[0].options) == {"standalone": "", "master-port": "1"}


def test_json_and_toml() -> None:
    assert pairs(read_config('{\n "NCCL_DEBUG": "INFO",\n "text": "run with NCCL_ALGO=Ring"\n}', form="json")) == [
        ("NCCL_DEBUG", "INFO", 2)
    ]
    assert pairs(read_config('[env]\nNCCL_DEBUG = "INFO"\n')) == [("NCCL_DEBUG", "INFO", 2)]


def test_a_log_tells_the_same_setting_once() -> None:
    text = (
        "node-1:23:23 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
        "node-1:24:24 [1] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
        "node-1:24:30 [1] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        "+ export NCCL_TIMEOUT=3600\n"
        "epoch 3: loss=0.3 NCCL_ALGO=Ring was a good idea\n"
    )
    settings = read_log(text)
    assert pairs(settings) == [
        ("NCCL_SOCKET_IFNAME", "eth0", 1),
        ("NCCL_IB_DISABLE", "1", 3),
        ("NCCL_TIMEOUT", "3600", 4),
    ]
    assert settings.assignments[0].reported_by == "node-1"


def test_the_environment_of_a_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NCCL_ALGO": "Ring"},
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: until then the kernel may show an empty environment
        settings = of_pid(child.pid)
        child.communicate(b"\n")
    assert ("NCCL_ALGO", "Ring") in [(a.name, a.value) for a in settings.assignments]
    assert settings.is_live
    with pytest.raises(UnreadableInput, match="no such process"):
        of_pid(2**22 + 12345)


def test_a_copied_environ_file(tmp_path: Path) -> None:
    (tmp_path / "environ").write_bytes(b"PATH=/bin\0NCCL_DEBUG=INFO\0OTHER=a\nb\0")
    settings = read_source(tmp_path / "environ")
    assert pairs(settings) == [("NCCL_DEBUG", "INFO", None)]
    assert settings.is_live


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\x7fELF\0\1\2\3", "binary"), (bytes(range(128, 192)) + b"\0\0\0=", "binary"), (b"=\0=", "binary")],
)
def test_a_binary_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UnreadableInput, match=reason):
        read_source(tmp_path / "x")


def test_bad_text_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    cases = {
        "empty.sh": (b"", []),
        "latin.sh": (b"# caf\xe9\nexport NCCL_DEBUG=INFO\n", ["INFO"]),
        "bom.env": (b"\xef\xbb\xbfNCCL_DEBUG=INFO\r\n", ["INFO"]),
        "wide.sh": ("export NCCL_DEBUG=INFO\n".encode("utf-16"), ["INFO"]),
        "deep.py": (b"x = " + b"(" * 5000 + b")" * 5000 + b"\nimport os\n", []),
        "quotes.sh": (b"export NCCL_DEBUG=\"INFO\necho 'x\n", ["INFO"]),
        "long.sh": (b"export NCCL_DEBUG=" + b"x" * 100_000 + b"\n", ["x" * 4096]),
    }
    for name, (content, expected) in cases.items():
        (tmp_path / name).write_bytes(content)
        assert [a.value for a in read_source(tmp_path / name).assignments] == expected, name


def test_a_huge_script_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge.sh").open("wb") as f:
        f.truncate(64 << 20)
    with pytest.raises(UnreadableInput, match="larger than"):
        read_source(tmp_path / "huge.sh")


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.sh")
    with pytest.raises(UnreadableInput, match="not a plain file"):
        read_source(tmp_path / "p.sh")
    assert list(files_below(tmp_path)) == []


def test_a_folder_is_searched_and_one_bad_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("export NCCL_DEBUG=INFO\n")
    (tmp_path / "Dockerfile").write_text("FROM x\nENV NCCL_ALGO=Ring\n")
    (tmp_path / "broken.sh").write_bytes(b"\0\1\2")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.sh").write_text("export NCCL_PROTO=LL\n")
    (tmp_path / "data.json").write_text('{"NCCL_PROTO": "LL"}')
    found, failed = read_sources([tmp_path])
    assert sorted(a.name for s in found for a in s.assignments) == ["NCCL_ALGO", "NCCL_DEBUG"]
    assert failed == []


def test_the_tables() -> None:
    known = variables()
    assert {t.library: t.version.split("+")[0] for t in tables()} == {"torch": "2.13.0", "NCCL": "2.29.7"}
    assert len(known) > 600
    assert sum(1 for v in known.values() if v.meaning) >= 120
    assert not [n for n in beliefs() if n in known], "a name cannot be both real and not"
    assert not [v.name for v in known.values() if v.now and v.now not in known]
    assert not [b for b in beliefs().values() if b.name and b.name not in known]
    assert {v.type for v in known.values()} <= {
        "flag", "bool", "int", "choice", "list", "level", "interfaces", "devices", "text",
    }  # fmt: skip
    assert known["NCCL_IB_TIMEOUT"].accepts == "1 to 31"
    assert "NCCL_TIMEOUT" in beliefs()


def test_names_of_builds_and_plug_ins_are_nobodys_mistake() -> None:
    assert whose_variable("NCCL_HOME")
    assert whose_variable("NCCL_FASTRAK_NUM_FLOWS")
    assert not whose_variable("NCCL_TIMEOUT")
    assert in_scope("NCCL_WHATEVER")
    assert not in_scope("PATH")


def test_the_process_environment_keeps_only_what_is_judged() -> None:
    assert [a.name for a in of_process({"NCCL_DEBUG": "INFO", "HOME": "/x", "HF_TOKEN": "hf_x"}).assignments] == [
        "NCCL_DEBUG"
    ]


def test_the_lists_are_rebuilt_from_libraries_headers_and_sources(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "include/torch/csrc/distributed").mkdir(parents=True)
    (torch / "lib" / "libtorch_cpu.so").write_bytes(b"\0GLOO_SOCKET_IFNAME\0TORCH_LIBRARY\0xTORCH_NO\0")
    (torch / "include/torch/csrc/distributed/x.hpp").write_text('= {"TORCH_NCCL_NEW", "NCCL_OLD"};')
    (torch / "run.py").write_text('os.environ.get("TORCH_NEW_THING")\nNAME = "TORCHELASTIC_CONSTANT"\n')
    target = tmp_path / "torch.json"
    rebuild.write_table(target, "torch", "1", "before", ["TORCH_NCCL_ONLY_IN_CUDA", "TORCH_GONE"])
    said = rebuild.rebuild_torch(torch, "9.9", target)
    assert rebuild.kept_names(target) == {
        "GLOO_SOCKET_IFNAME", "TORCH_NCCL_NEW", "TORCH_NEW_THING", "TORCHELASTIC_CONSTANT", "TORCH_NCCL_ONLY_IN_CUDA",
    }  # fmt: skip
    assert said == "torch 9.9: 4 names read, 1 that this build does not have kept from the list before"


def test_without_a_library_the_list_of_nccl_is_kept_and_that_is_said(tmp_path: Path) -> None:
    target = tmp_path / "nccl.json"
    rebuild.write_table(target, "NCCL", "1", "before", ["NCCL_DEBUG"])
    assert "kept as it is (1 names)" in rebuild.rebuild_nccl(None, target)
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\0NCCL_DEBUG\0NCCL_NEW\0NCCL_GIN_TYPE_NONE\0NCCL version 2.30.1+cuda13\0")
    assert rebuild.rebuild_nccl(library, target) == "NCCL 2.30.1: 2 names read"
    assert rebuild.kept_names(target) == {"NCCL_DEBUG", "NCCL_NEW"}
