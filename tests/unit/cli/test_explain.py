from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.logs import corpus

from unhang.cli import explain
from unhang.cli import main as cli_main
from unhang.model import CAUSES
from unhang.read.logs import all_patterns
from unhang.rules.decision_tree import QUESTIONS, explanation, rules_by_id
from unhang.rules.registry import all_rules
from unhang.skill.advice import ADVICE, Advice

WATCHDOG = (
    "[rank1]:[E228 02:40:22.57 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) ran for 1800042 "
    "milliseconds before timing out."
)
TOLD = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_main, "COMMANDS", tuple(dict.fromkeys((*cli_main.COMMANDS, "explain", "skill"))))


def as_json(capsys: TOLD, *words: str) -> dict[str, Any]:
    assert cli_main.main(["explain", *words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "unhang.explain/1"
    return told


def text(capsys: TOLD, *words: str) -> str:
    assert cli_main.main(["explain", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("rule_id", [rule.id for rule in all_rules()])
def test_a_rule_is_explained_in_its_own_words(rule_id: str, capsys: TOLD) -> None:
    told = explanation(rules_by_id()[rule_id])
    shown = text(capsys, rule_id)
    assert shown.startswith(f"{rule_id}  [cause {told.cause}: {CAUSES[told.cause]}]\n\n{told.summary}\n")
    for heading, content in told.sections.items():
        assert f"\n{heading}\n  {content.splitlines()[0]}\n" in shown
    found = as_json(capsys, rule_id)
    assert (found["kind"], found["rule"], found["how_to_fix"]) == ("rule", rule_id, told.sections["How to fix"])


def test_a_rule_is_found_in_any_spelling(capsys: TOLD) -> None:
    assert text(capsys, "GPU_out_of_memory") == text(capsys, "gpu-out-of-memory")
    assert text(capsys, "gpu", "out", "of", "memory") == text(capsys, "gpu-out-of-memory")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_names_its_rules(cause: str, capsys: TOLD) -> None:
    shown = text(capsys, cause)
    if cause in rules_by_id():
        assert shown.startswith(f"{cause}  [cause ")
        return
    assert shown.startswith(f"{cause}: {CAUSES[cause]}\n")
    of_cause = [rule.id for rule in all_rules() if rule.cause == cause]
    assert all(f"\n{rule_id}: " in shown for rule_id in of_cause)
    assert of_cause or "No rule establishes it yet." in shown
    assert [rule["rule"] for rule in as_json(capsys, cause)["rules"]] == of_cause


def test_a_variable_that_is_real_and_one_that_nobody_reads(capsys: TOLD) -> None:
    shown = text(capsys, "NCCL_IB_TIMEOUT=1000")
    assert "time limit of a collective" in " ".join(shown.split())
    assert "1 to 31" in shown
    assert "wrong: NCCL_IB_TIMEOUT=1000" in shown
    assert "wrong: " not in text(capsys, "NCCL_IB_TIMEOUT=22")
    assert "wrong: " not in text(capsys, "NCCL_IB_TIMEOUT")
    assert as_json(capsys, "NCCL_IB_TIMEOUT=1000")["variable"] == "NCCL_IB_TIMEOUT=1000"
    told = as_json(capsys, "NCCL_TIMEOUT")
    assert (told["kind"], told["variable"]) == ("variable", "NCCL_TIMEOUT")
    assert told["meaning"].startswith("no library reads it")
    assert "init_process_group" in told["instead"]


@pytest.mark.parametrize("name", ADVICE)
def test_advice_is_put_right(name: str, capsys: TOLD) -> None:
    advice = ADVICE[name]
    told = as_json(capsys, name)
    assert (told["kind"], told["heard"], told["truth"]) == ("advice", advice.heard, advice.truth)
    assert "What is true" in text(capsys, name)


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("gpu-om", "gpu-oom"),
        ("dataloder-hang", "dataloader-hang"),
        ("NCCL_IB_TIMEOT", "NCCL_IB_TIMEOUT"),
        ("NCCL_IB_TIMEOT=3", "NCCL_IB_TIMEOUT"),
        ("descriptors", "fd-exhaustion"),
    ],
)
def test_an_unknown_word_gets_the_nearest_names(word: str, nearest: str, capsys: TOLD) -> None:
    assert cli_main.main(["explain", word]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(f"unhang: nothing is known by the name {word!r} (did you mean ")
    assert nearest in seen.err


@pytest.mark.parametrize("word", ["xyzzy", "no/such.log", "\x1b[31m", "a" * 5000, "\udcff"])
def test_an_unknown_word_is_2(word: str, capsys: TOLD) -> None:
    assert cli_main.main(["explain", word]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("unhang: nothing is known")
    assert "\x1b" not in seen.err
    assert len(seen.err) < 600


def test_a_line_that_only_tells_of_waiting_names_no_cause(capsys: TOLD) -> None:
    shown = text(capsys, WATCHDOG)
    assert "watchdog.timeout" in shown
    assert "op BROADCAST" in shown
    assert "the rank that prints it waited" in shown
    assert "by itself it names no cause" in shown
    known = as_json(capsys, WATCHDOG)["known"][0]
    assert known["fields"]["seq"] == "532339"
    assert {rules_by_id()[rule].cause for rule in known["leads_to"]} <= {"unknown"}


def test_an_exception_without_its_traceback_leads_to_a_rule(capsys: TOLD) -> None:
    shown = text(capsys, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert "unhang explain gpu-out-of-memory" in shown
    assert "rank 0" not in shown, "who failed is not told by the line"


def test_every_family_of_lines_is_explained(capsys: TOLD) -> None:
    first = {pattern.kind.split(".")[0]: pattern for pattern in reversed(all_patterns())}
    examples = corpus.examples()
    for pattern in first.values():
        told = as_json(capsys, examples[pattern.kind][0])
        known = next(k for k in told["known"] if pattern.kind in k["kinds"])
        assert known["printed_by"]


def test_a_text_that_is_not_known_is_3(capsys: TOLD) -> None:
    assert cli_main.main(["explain", "the weather is fine today"]) == 3
    assert capsys.readouterr() == (
        "",
        "unhang: no line of it is known ('unhang diagnose PATH...' judges dumps, bundles and logs together)\n",
    )


@pytest.mark.parametrize(
    ("symptom", "name"),
    [
        ("job hangs at 99%", "uneven-inputs"),
        ("validation only on rank 0", "code-divergence"),
        ("dataloader workers hang", "dataloader-hang"),
        ("works on one node, hangs on two", "network-interface"),
        ("exitcode -9", "host-oom"),
        ("GPU utilization 100% but no progress", "gpu-at-100-percent"),
        ("how do I increase the timeout?", "raise-the-timeout"),
        ("stuck at init_process_group", "rendezvous-incomplete"),
    ],
)
def test_a_symptom_leads_to_what_speaks_of_it(symptom: str, name: str, capsys: TOLD) -> None:
    found = as_json(capsys, symptom)
    assert found["kind"] == "topics"
    assert name in [topic["name"] for topic in found["topics"]]
    assert f"\n  {name}: " in text(capsys, symptom)
    for topic in found["topics"]:
        text(capsys, topic["name"])  # each can be explained


@pytest.mark.parametrize("line", ["the job: hang=[rank 0] on second epoch", "a recipe for pizza", "hang " * 100])
def test_what_is_no_symptom_leads_nowhere(line: str, capsys: TOLD) -> None:
    assert cli_main.main(["explain", line]) == 3
    assert capsys.readouterr().out == ""


def test_stdin_is_a_text(monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    content = f"step 1\n{WATCHDOG}\nstep 2\n{WATCHDOG}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    told = as_json(capsys, "-")
    assert (told["path"], told["line_count"]) == ("stdin", 4)
    assert [(k["count"], k["line"]) for k in told["known"]] == [(2, 2)]


def test_a_log_is_explained_line_by_line_and_as_a_whole(tmp_path: Path, capsys: TOLD) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "step 1\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "train.py", line 7, in main\n'
        "[rank2]:     loss.backward()\n"
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" + WATCHDOG + "\n"
    )
    shown = text(capsys, str(log))
    assert shown.startswith(f"{log}: 6 lines, ")
    assert "watchdog.timeout  (once, at line 6)" in shown
    assert "\nTaken together\n  gpu-out-of-memory: rank 2 ran out of device memory" in shown
    assert shown.endswith("\nMore: unhang explain gpu-out-of-memory\n")
    assert as_json(capsys, str(log))["together"][0]["rule"] == "gpu-out-of-memory"


def test_what_a_job_wrote_cannot_steer_the_terminal(tmp_path: Path, capsys: TOLD) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(WATCHDOG.encode() + b" \x9b31m\x07\xe2\x80\xae evil\n")
    assert not set(text(capsys, str(log))) & set("\x1b\x9b\x07\u202e")


def test_of_a_script_the_variables_are_told_and_no_secret(tmp_path: Path, capsys: TOLD) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(
        "#!/bin/bash\nexport NCCL_TIMEOUT=3600 HF_TOKEN=hf_secret\nNCCL_IB_TIMEOUT=1000 torchrun train.py\n"
    )
    shown = text(capsys, str(script))
    assert "line 2: NCCL_TIMEOUT=3600" in shown
    assert "line 3: NCCL_IB_TIMEOUT=1000" in shown
    assert "secret" not in shown
    assert [v["variable"] for v in as_json(capsys, str(script))["variables"]] == ["NCCL_TIMEOUT", "NCCL_IB_TIMEOUT"]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("empty.log", b"", 2),
        ("dump.pickle", b"\x80\x04K\x01.", 2),
        ("stacks.json", b'[{"frames": []}]', 2),
        ("zeros.bin", b"\0" * 4096, 2),
        ("calm.log", b"step 1\nstep 2\n", 3),
        ("calm.sh", b"#!/bin/sh\necho hello\n", 3),
        ("latin.log", "Gr\xf6\xdfe\n".encode("latin-1"), 3),
    ],
)
def test_a_file_without_anything_known(name: str, content: bytes, code: int, tmp_path: Path, capsys: TOLD) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert cli_main.main(["explain", str(path)]) == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(f"unhang: {path}")
    assert seen.err.count("\n") == 1


def test_a_folder_is_for_diagnose(tmp_path: Path, capsys: TOLD) -> None:
    assert cli_main.main(["explain", str(tmp_path)]) == 2
    assert "'unhang diagnose PATH...'" in capsys.readouterr().err


def test_without_a_terminal_the_whole_tree_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    monkeypatch.setattr(explain, "is_interactive", lambda: False)
    shown = text(capsys)
    assert all(question.text in shown for question in QUESTIONS.values())
    assert all(f"       {rule.id}: " in shown for rule in all_rules())
    told = as_json(capsys)
    assert (told["kind"], told["first"], told["what"]) == ("tree", "job", None)
    assert set(told["questions"]) == set(QUESTIONS)
    assert set(told["rules"]) == set(rules_by_id())
    for question in told["questions"].values():
        assert all(a["then"] in told["questions"] for a in question["answers"] if a["then"])


def walk(monkeypatch: pytest.MonkeyPatch, capsys: TOLD, answers: str) -> str:
    monkeypatch.setattr(explain, "is_interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    return text(capsys)


def test_answers_lead_to_rules(monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    shown = walk(monkeypatch, capsys, "3\n1\n2\nq\n")
    order = [shown.index(QUESTIONS[name].text) for name in ("job", "ranks", "gone")]
    assert order == sorted(order)
    assert shown.index("gpu-out-of-memory: ") > order[-1]
    assert "confirm: " in shown
    assert "unhang explain gpu-out-of-memory" in shown


def test_back_leads_to_the_question_before(monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    shown = walk(monkeypatch, capsys, "3\n1\n2\nb\nb\nb\nq\n")
    assert [shown.count(QUESTIONS[name].text) for name in ("job", "ranks", "gone")] == [2, 2, 2]


def test_the_first_question_has_no_way_back_and_nonsense_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: TOLD
) -> None:
    shown = walk(monkeypatch, capsys, "b\n0\n99\nwhat\nQ\n")
    assert shown.count("Error: ") == 4
    assert QUESTIONS["ranks"].text not in shown


def test_the_end_of_the_input_ends_the_questions(monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    assert QUESTIONS["ranks"].text in walk(monkeypatch, capsys, "3\n")


def test_a_real_terminal_is_asked() -> None:
    code = (
        "import sys; from unhang.cli import main as m; "
        "m.COMMANDS = tuple(dict.fromkeys((*m.COMMANDS, 'explain'))); sys.exit(m.main(['explain']))"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"5\nq\n")
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says EIO when the other side has gone
                break
            if not part:
                break
            seen += part
        assert process.wait(30) == 0
    os.close(ours)
    assert QUESTIONS["message"].text.encode() in seen


def test_a_line_is_explained_from_the_catalogue(capsys: TOLD) -> None:
    shown = text(capsys, "NVRM: Xid (PCI:0000:3b:00): 94, pid=1, Contained: SM")
    assert "emitter     xid (layer: driver)" in shown
    assert "cause       gpu-hardware" in shown
    assert "do first" in shown
    told = as_json(capsys, "Bootstrap : no socket interface found")["known"][0]["message"]
    assert (told["emitter"], told["layer"], told["role"], told["cause"]) == (
        "nccl",
        "nccl",
        "root",
        "network-interface",
    )


def test_of_an_unknown_line_its_emitter_is_told(capsys: TOLD) -> None:
    shown = text(capsys, "slurmstepd: error: words that are new")
    assert "slurm (layer: scheduler)" in shown
    assert "by itself it names no cause" in shown


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ("retain_graph", "retain-graph"),
        ("backward(retain_graph=True)", "retain-graph"),
        ("torch.autograd.set_detect_anomaly(True)", "detect-anomaly"),
        ("bucket_cap_mb=50", "bucket-cap-mb"),
        ("forward_sync_buffers", "broadcast-buffers"),
        ("static_graph", "static-graph"),
        ("find_unused_parameters=True", "find-unused-parameters"),
        ("gradient checkpointing", "gradient-checkpointing"),
        ("gradient_as_bucket_view", "gradient-as-bucket-view"),
        ("_DEFAULT_PG_TIMEOUT", "default-pg-timeout"),
        ("sleep before destroy", "sleep-before-destroy"),
        ("max_split_size_mb", "max-split-size-mb"),
        ("num_workers=0", "fewer-workers"),
        ("dataloader timeout", "dataloader-timeout"),
        ("persistent_workers", "persistent-workers"),
        ("prefetch_factor", "prefetch-factor"),
        ("pin_memory", "pin-memory"),
        ("spawn", "fork-or-spawn"),
        ("ddp_timeout", "raise-the-timeout"),
        ("broadcast_params", "no-parameter-broadcast"),
        ("device_ids", "device-ids"),
        ("800.85s/it", "slow-rate"),
        ("0.02 it/s", "slow-rate"),
        ("set_epoch", "drop-last"),
    ],
)
def test_an_option_or_a_habit_leads_to_what_is_true_of_it(asked: str, advice: str, capsys: TOLD) -> None:
    assert as_json(capsys, asked)["advice"] == advice


def test_no_two_pieces_of_advice_have_the_same_name() -> None:
    named = [name for advice in ADVICE.values() for name in _names_of(advice)]
    assert len(named) == len(set(named))
    assert all(a.heard and a.truth.endswith((".", '"')) and a.instead for a in ADVICE.values())


def _names_of(advice: Advice) -> set[str]:
    return {name.lower().replace("_", "-").replace(" ", "-") for name in (advice.id, *advice.names)}


@pytest.mark.parametrize(
    ("fragment", "emitter"),
    [
        ("collective operation timeout", "c10d"),
        ("Address already in use", "store"),
        ("Connection closed by peer", "gloo"),
        ("watchdog got stuck", "c10d"),
    ],
)
def test_a_fragment_leads_to_the_messages_that_contain_it(fragment: str, emitter: str, capsys: TOLD) -> None:
    found = as_json(capsys, fragment)
    assert found["kind"] == "messages"
    assert found["messages"][0]["emitter"] == emitter


def test_a_fragment_of_nothing_known_is_said_to_be_unknown(capsys: TOLD) -> None:
    assert cli_main.main(["explain", "zqxj wvut kkkk"]) == 3
    assert cli_main.main(["explain", "e"]) == 2
    assert capsys.readouterr().out == ""


def test_a_stuck_watchdog_is_not_told_to_wait_for_another_rank(capsys: TOLD) -> None:
    assert cli_main.main(["explain", "ProcessGroupNCCL's watchdog got stuck for 480 seconds"]) == 0
    assert "waited, for another" not in capsys.readouterr().out
