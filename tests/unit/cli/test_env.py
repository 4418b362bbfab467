"""`unhang env`: what it says of variables, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from unhang.cli.lint import env as command
from unhang.errors import NothingToJudge, UnreadableInput, WrongUsage
from unhang.model import Finding
from unhang.read.environment.sources import of_process, read_python
from unhang.read.environment.texts import read_config, read_log, read_shell
from unhang.rules.env import distance, judge_settings, nearest


def env(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of the command."""
    result = CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert isinstance(result.return_value, int)
    return result.return_value, result.output


def found(text: str) -> list[Finding]:
    return list(judge_settings([read_shell(text, "run.sh")]).findings)


def titles(text: str) -> str:
    return "\n".join(f.title for f in found(text))


@pytest.mark.parametrize(
    ("line", "rule", "part", "least"),
    [
        # Names that nothing reads.
        ("export NCCL_TIMEOUT=3600", "env-unknown", "NCCL_TIMEOUT does nothing", 0.9),
        ("export TORCH_DISTRIBUTED_TIMEOUT=1", "env-unknown", "does nothing", 0.9),
        ("export CUDA_MEMORY_FRACTION=0.9", "env-unknown", "does nothing", 0.9),
        ("export NCCL_SOCKET_IFNAM=eth0", "env-unknown", "NCCL_SOCKET_IFNAME is near", 0.9),
        ("export NCCL_DISABLE_P2P=1", "env-unknown", "NCCL_P2P_DISABLE is near", 0.9),
        ("export TORCH_NCCL_IB_DISABLE=1", "env-unknown", "NCCL_IB_DISABLE is near", 0.9),
        ("export NCCL_SOCKET_TIMEOUT_MS=1", "env-unknown", "does nothing", 0.8),
        ("export NCCL_SOMETHING_ELSE_ENTIRELY=1", "env-unknown", "no library is known to read it", 0.5),
        ("export NCCL_TREE_THRESHOLD=0", "env-removed", "later than 2.4", 0.8),
        # Old names.
        ("export NCCL_BLOCKING_WAIT=0", "env-deprecated", "old name: TORCH_NCCL_BLOCKING_WAIT", 0.5),
        ("export TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "env-deprecated", "old name: TORCH_FR_BUFFER_SIZE", 0.5),
        # Values.
        ("export NCCL_IB_TIMEOUT=1000", "env-value", "means for ever", 0.95),
        ("export NCCL_IB_TIMEOUT=0", "env-value", "means for ever", 0.95),
        ("export NCCL_IB_TIMEOUT=25", "env-harmful", "16 minutes", 0.7),
        ("export NCCL_IB_RETRY_CNT=13", "env-value", "out of range: 0 to 7", 0.9),
        ("export NCCL_IB_DISABLE=true", "env-value", "means 0 to NCCL", 0.9),
        ("export NCCL_CUMEM_ENABLE=yes", "env-value", "means 0 to NCCL", 0.9),
        ("export NCCL_IB_TIMEOUT=long", "env-value", "means for ever", 0.9),
        ("export NCCL_P2P_LEVEL=nvl", "env-value", "in capitals", 0.9),
        ("export TORCH_NCCL_BLOCKING_WAIT=maybe", "env-value", "torch refuses", 0.95),
        ("export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=", "env-value", "torch refuses the empty value", 0.95),
        ("export TORCH_NCCL_ASYNC_ERROR_HANDLING=7", "env-value", "out of range: 0 to 3", 0.9),
        ("export NCCL_DEBUG=DEBUG", "env-value", "out of range", 0.9),
        ("export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NETWORK", "env-value", "no NETWORK", 0.9),
        ("export NCCL_NTHREADS=500", "env-value", "out of range", 0.9),
        ("export NCCL_P2P_LEVEL=NVLINK", "env-value", "out of range", 0.9),
        ("export MASTER_PORT=99999", "env-value", "out of range", 0.9),
        ("export CUDA_VISIBLE_DEVICES=0,1,1", "env-value", "twice", 0.9),
        ("export GLOO_SOCKET_IFNAME=^docker0", "env-value", "gloo takes names", 0.9),
        ("export NCCL_DEBUG_FILE=/tmp/nccl.log", "env-value", "one file for all", 0.75),
        # Harm.
        ("export TORCH_FR_BUFFER_SIZE=67108864", "env-harmful", "34.9 GB of host memory per rank", 0.95),
        ("export NCCL_P2P_DISABLE=1", "env-harmful", "left on", 0.7),
        ("export NCCL_IB_DISABLE=1", "env-harmful", "left on", 0.7),
        ("export TORCH_NCCL_BLOCKING_WAIT=1", "env-harmful", "switches error handling", 0.7),
        ("export TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "env-harmful", "does not end the job", 0.8),
        ("export TORCH_NCCL_ENABLE_MONITORING=0", "env-harmful", "never noticed", 0.7),
        ("export TORCH_DISTRIBUTED_DEBUG=DETAIL", "env-harmful", "left on", 0.7),
        ("export CUDA_LAUNCH_BLOCKING=1", "env-harmful", "left on", 0.7),
        ("export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID", "env-harmful", "one device for each rank", 0.7),
        ("export NCCL_PROTO=LL128", "env-harmful", "forces LL128", 0.7),
        ("export NCCL_SOCKET_IFNAME=lo", "env-harmful", "one machine only", 0.7),
        # No effect.
        ("export NCCL_IB_DISABLE=0", "env-without-effect", "the default", 0.5),
        ("export NCCL_IB_DISABLE=1\ntorchrun --standalone t.py", "env-without-effect", "nothing on one node", 0.5),
        ("export NCCL_SOCKET_IFNAME=^docker0,lo", "env-without-effect", "anyway", 0.5),
        ("NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET", "env-without-effect", "beside NCCL_DEBUG=WARN", 0.8),
        ("TORCH_NCCL_DESYNC_DEBUG=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "env-without-effect", "TORCH_NCCL_DESYNC_DEBUG=1 has no", 0.9),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=0", "env-without-effect", "DUMP_ON_TIMEOUT=1 has no", 0.9),
        ("NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx5", "env-without-effect", "NCCL_IB_HCA: no effect", 0.9),
        ("torchrun --standalone --master-port 29501 t.py", "env-without-effect", "--master-port=29501", 0.9),
        ("export MASTER_PORT=29501\ntorchrun --standalone t.py", "env-without-effect", "MASTER_PORT has no effect", 0.7),
        ("export LOCAL_RANK=0\ntorchrun t.py", "env-without-effect", "LOCAL_RANK set by hand", 0.7),
        # Against each other.
        ("TORCH_NCCL_BLOCKING_WAIT=1 NCCL_ASYNC_ERROR_HANDLING=1", "env-contradiction", "exclude each other", 0.9),
        ("NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL", "env-contradiction", "NCCL_P2P_LEVEL=NVL", 0.9),
        ("NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=16", "env-contradiction", "more than", 0.9),
        ("NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "env-contradiction", "128: at most 64", 0.9),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=4 t.py", "env-contradiction", "shows 2 devices", 0.8),
        ("torchrun --nnodes=2 --master-addr=localhost t.py", "env-contradiction", "waits for itself", 0.9),
        ("TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=100", "env-contradiction", "one setting", 0.7),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(line: str, rule: str, part: str, least: float) -> None:
    matching = [f for f in found(line) if f.rule == rule and part in f.title]
    assert matching, titles(line)
    finding = matching[0]
    assert finding.confidence >= least
    assert finding.cause == "misconfigured-env"
    assert finding.location is not None
    assert finding.location.file == "run.sh"
    assert finding.because
    for fix in finding.fixes:
        assert fix.verify
        assert fix.undo
        assert fix.advice or fix.command or fix.setting


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=mlx5 NCCL_IB_GID_INDEX=3",
        "export NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7 NCCL_CROSS_NIC=1 NCCL_ALGO=Ring NCCL_NET_GDR_LEVEL=PHB NCCL_P2P_LEVEL=5",
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_DESYNC_DEBUG=1 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1200",
        "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=true TORCH_DISTRIBUTED_DEBUG=INFO",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True OMP_NUM_THREADS=8 CUDA_DEVICE_MAX_CONNECTIONS=1",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node 4 train.py",
        "export NCCL_HOME=/usr/local/nccl NCCL_VERSION=2.20 CUDA_VERSION=12.1 CUDA_HOME=/usr/local/cuda TORCH_CUDA_ARCH_LIST=8.0",
        "export NCCL_FASTRAK_NUM_FLOWS=2 NCCL_TUNER_CONFIG_PATH=/x NCCL_GPUDIRECTTCPX_FORCE_ACK=0",
        "export TORCH_OF_MY_OWN=1 CUDA_STUFF=2",
        "NCCL_TIMEOUT=3600\npython train.py --timeout $NCCL_TIMEOUT",
        "export MASTER_ADDR=$(hostname) MASTER_PORT=29500\ntorchrun --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT t.py",
        "torchrun --nnodes=1 --master-addr=localhost --master-port=29501 t.py",
        "torchrun --standalone --nnodes=1 --nproc_per_node=8 t.py --master_port 1",
        "export NCCL_P2P_DISABLE=$DISABLE NCCL_IB_TIMEOUT=$T NCCL_DEBUG=$LEVEL",
        "export NCCL_DEBUG= NCCL_ALGO= NCCL_IB_DISABLE=",
        "export GLOO_SOCKET_IFNAME=lo\ntorchrun --standalone t.py",
        "export NCCL_MULTI_RANK_GPU_ENABLE=0 NCCL_IGNORE_NET_MISMATCH=0",
    ],
)
def test_sound_settings_are_left_alone(line: str) -> None:
    assert titles(line) == ""


def test_a_name_that_the_jobs_own_code_reads_is_its_own() -> None:
    script = read_shell("export NCCL_TIMEOUT_MINUTES=30\n", "run.sh")
    code = read_python("limit = os.environ.get('NCCL_TIMEOUT_MINUTES', '10')", "train.py")
    assert judge_settings([script]).findings
    assert not judge_settings([script, code]).findings


def test_a_process_without_nccl_debug_prints_nothing() -> None:
    verdict = judge_settings([of_process({"NCCL_DEBUG_SUBSYS": "NET"})])
    assert [f.title for f in verdict.findings] == ["NCCL_DEBUG_SUBSYS=NET has no effect without NCCL_DEBUG"]
    assert verdict.findings[0].fixes[0].command == "unset NCCL_DEBUG_SUBSYS"
    assert verdict.findings[0].fixes[0].undo == "export NCCL_DEBUG_SUBSYS=NET"


def test_yaml_and_logs_are_judged_too() -> None:
    yaml = read_config("env:\n- name: NCCL_IB_TIMEOUT\n  value: '1000'\n", "pod.yaml")
    log = read_log("node-1:2:2 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 100.\n", "job.log")
    places = [(f.location.file, f.location.line) for f in judge_settings([yaml, log]).findings if f.location]
    assert places == [("job.log", 1), ("pod.yaml", 3)]


def test_the_same_finding_in_several_lines_is_told_once() -> None:
    findings = found("export NCCL_TIMEOUT=1\nexport NCCL_TIMEOUT=2\n")
    assert len(findings) == 1
    assert [e.line for e in findings[0].evidence] == [1, 2]


def test_a_bundle_tells_the_environment_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    job = {"command": ["torchrun", "t.py"], "environment": {"NCCL_IB_TIMEOUT": "1000", "HOME": "/x"}}
    (tmp_path / "bundle" / "job.json").write_text(json.dumps(job, indent=1))
    code, text = env(tmp_path)
    assert code == 1
    assert "NCCL_IB_TIMEOUT=1000 means for ever" in text


def test_a_word_switches_nothing_off() -> None:
    assert "NCCL_P2P_LEVEL=NVL has no effect" not in titles("NCCL_P2P_DISABLE=true NCCL_P2P_LEVEL=NVL")


def test_nearness_of_names() -> None:
    assert distance("NCCL_DEBUG", "NCCL_DEBGU", 2) == 1
    assert distance("NCCL_DEBUG", "GLOO_SOCKET_IFNAME", 2) == 3
    assert nearest("NCCL_HEARTBEAT_TIMEOUT_SEC") == "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
    assert nearest("NCCL_XYZ") == ""


def test_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "good.sh").write_text("export NCCL_DEBUG=INFO\n")
    (tmp_path / "bad.sh").write_text("export NCCL_TIMEOUT=1\n")
    (tmp_path / "nothing.sh").write_text("echo hello\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    assert env(tmp_path / "good.sh") == (0, "CLEAN  1 setting in 1 place: nothing wrong found\n")
    code, text = env(tmp_path / "bad.sh")
    assert code == 1
    assert text.startswith("ENV  1 finding (1 wrong) on 1 setting in 1 place\n")
    assert f"{tmp_path}/bad.sh:1  NCCL_TIMEOUT=1" in text
    assert "init_process_group(timeout=" in text
    for name in ("binary", "missing"):
        with pytest.raises(UnreadableInput) as unreadable:
            env(tmp_path / name)
        assert unreadable.value.exit_code == 2
    with pytest.raises(NothingToJudge) as nothing:
        env(tmp_path / "nothing.sh")
    assert nothing.value.exit_code == 3
    code, text = env(tmp_path / "good.sh", tmp_path / "binary")
    assert code == 2
    assert "NOT READ" in text
    assert env(tmp_path)[0] == 1


def test_this_process_and_a_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("NCCL_", "TORCH_", "CUDA_", "OMP_", "GLOO_", "PYTORCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "1000")
    code, text = env()
    assert code == 1
    assert "this process" in text
    assert "$ unset NCCL_IB_TIMEOUT" in text
    with pytest.raises(UnreadableInput):
        env("--pid", str(2**22 + 12345))


def test_interfaces_are_checked_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lo", "ens3f0"):
        (tmp_path / "net" / name).mkdir(parents=True)
    monkeypatch.setattr("unhang.read.environment.sources.INTERFACES", tmp_path / "net")
    script = tmp_path / "run.sh"
    script.write_text("export NCCL_SOCKET_IFNAME=eth0\n")
    assert env(script)[0] == 0
    code, text = env("--live", script)
    assert code == 1
    assert "no interface eth0" in text
    script.write_text("export NCCL_SOCKET_IFNAME=ens3\n")
    assert env("--live", script)[0] == 0
    script.write_text("export NCCL_SOCKET_IFNAME==ens3\n")
    assert env("--live", script)[0] == 1


def test_json(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("export NCCL_TIMEOUT=1\n")
    target = tmp_path / "out.json"
    code, text = env(tmp_path / "run.sh", "--format", "json", "--output", target)
    report = json.loads(target.read_text())
    assert (code, text) == (1, "")
    assert report["schema"] == "unhang.env/1"
    finding = report["findings"][0]
    assert finding["cause"] == "misconfigured-env"
    assert finding["severity"] == "wrong"
    assert finding["location"] == {"file": str(tmp_path / "run.sh"), "line": 1}
    assert {"title", "verify", "undo"} <= set(finding["fixes"][0])


def test_secrets_are_never_printed(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "export NCCL_DEBUG_FILE=https://me:hunter2@host/x NCCL_API_TOKEN=abcdef HF_TOKEN=hf_abcdefghijklmnop\n"
        "export NCCL_WRONG_NAME=hf_abcdefghijklmnop\n"
    )
    for how in ("text", "json"):
        _, text = env(script, "--format", how)
        assert "hunter2" not in text
        assert "abcdef" not in text
        assert "NCCL_WRONG_NAME" in text


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"export NCCL_TIMEOUT=\x1b[31mred\n")
    assert "\x1b" not in env(tmp_path / "run.sh")[1]


def test_the_reference() -> None:
    code, text = env("--list", "NCCL_IB_TIMEOUT")
    assert code == 0
    assert text.startswith("NCCL_IB_TIMEOUT  NCCL, 1 to 31, default 20\n")
    assert "NCCL 2.29.7" in text
    entries = json.loads(env("--list", "TORCH_FR_*", "--format", "json")[1])["variables"]
    assert {e["name"] for e in entries} >= {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}
    assert all(e["name"].startswith("TORCH_FR_") for e in entries)
    everything = env("--list")[1]
    assert "REAL; NOT DOCUMENTED HERE" in everything
    assert "NCCL_TIMEOUT" in everything
    with pytest.raises(WrongUsage, match="init_process_group"):
        env("--list", "NCCL_TIMEOUT")
    with pytest.raises(WrongUsage, match="no variable matches"):
        env("--list", "XYZZY")


def test_severity_follows_confidence() -> None:
    findings = found("export NCCL_TIMEOUT=1 NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=0\n")
    assert [f.severity for f in findings] == ["wrong", "doubtful", "note"]
