from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import warm
from tests.slowness import slowness

from unhang import __version__
from unhang.cli import main as cli_main
from unhang.cli.explain import commands_with_help
from unhang.model import CAUSES, Diagnosis, Inventory, Job, Outcome, RuleOutcome, Unavailable, Verdict
from unhang.rules.decision_tree import QUESTIONS, rules_by_id
from unhang.rules.registry import judge
from unhang.show.verdict import to_json
from unhang.skill.advice import ADVICE
from unhang.skill.folder import MAIN, MAX_BODY_LINES, NAME, default_target, front_matter, skill_files, split, validate
from unhang.testing import make_case

TOLD = pytest.CaptureFixture[str]
GOOD = "---\nname: a-skill\ndescription: Does something. Use when needed.\n---\n\n# Text\n"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_main, "COMMANDS", tuple(dict.fromkeys((*cli_main.COMMANDS, "explain", "skill"))))


def install(target: Path, *more: str) -> int:
    return cli_main.main(["skill", "install", "--target", str(target), *more])


@pytest.fixture
def written(tmp_path: Path, capsys: TOLD) -> Path:
    assert install(tmp_path / "skills") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'skills' / NAME}\n"
    return tmp_path / "skills" / NAME


def test_what_is_written_is_valid(written: Path, capsys: TOLD) -> None:
    assert validate(written) == []
    assert cli_main.main(["skill", "validate", str(written)]) == 0
    assert capsys.readouterr().out == f"{written}: a valid skill\n"
    assert sorted(str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()) == sorted(skill_files({}))


def test_what_is_written_is_small_enough_to_be_read(written: Path) -> None:
    text = (written / MAIN).read_text()
    assert len(text) < 20_400, "more than about 5,000 tokens"
    front, _ = split(text)
    values = front_matter(front)
    assert values["name"] == NAME
    assert values["license"] == "Apache-2.0"
    assert isinstance(values["metadata"], dict)
    assert values["metadata"]["version"] == __version__
    assert "Use when" in values["description"]


def test_the_front_matter_is_the_yaml_that_others_read(written: Path) -> None:
    yaml = pytest.importorskip("yaml")
    front, _ = split((written / MAIN).read_text())
    assert yaml.safe_load("\n".join(front)) == front_matter(front)


def test_every_command_is_named_and_no_other(written: Path) -> None:
    text = (written / MAIN).read_text()
    assert set(re.findall(r"`unhang ([a-z]+)", text)) == set(cli_main.COMMANDS)
    assert all(f"| `unhang {name}` | {help_text} |" in text for name, help_text in commands_with_help().items())
    assert all(text and "\n" not in text for text in commands_with_help().values())


def test_a_step_for_a_command_is_there_only_with_the_command() -> None:
    assert "6. **Variables" not in skill_files({"run": "Run."})[MAIN]
    assert "6. **Variables" in skill_files({"run": "Run.", "env": "Judge."})[MAIN]
    assert "{{" not in "".join(skill_files({"run": "Run.", "env": "Judge."}).values())


def test_every_rule_cause_and_question_is_in_it(written: Path) -> None:
    main, rules = (written / MAIN).read_text(), (written / "references" / "rules.md").read_text()
    tree = (written / "references" / "decision-tree.md").read_text()
    for rule_id in rules_by_id():
        assert f"\n## {rule_id}\n" in rules
        assert f"](rules.md#{rule_id})" in tree
    assert all(f"`{cause}`" in main or f"`{rule}`" in main for cause, rule in _names().items())
    assert all(question.text in main for name, question in QUESTIONS.items() if name != "all")
    assert all(f"`{name}`" in main for name in ADVICE)


def _names() -> dict[str, str]:
    return {cause: next((r.id for r in rules_by_id().values() if r.cause == cause), cause) for cause in CAUSES}


def test_the_keys_of_the_report_are_the_real_ones(written: Path) -> None:
    found = judge(make_case({}, errors={1: "ValueError: corrupt@main:20"}, exit_code=1))
    report = json.loads(to_json(found))
    known = {*report, *report["findings"][0], *report["hang"], *report["inventory"]}
    table = (written / MAIN).read_text().split("## Read report.json")[1].split("| exit code")[0]
    named = {
        part
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
        for part in re.sub(r"\[0?\]", "", name).split(".")
        if part
    }
    assert named > {"outcome", "findings", "evidence", "fixes", "kind"}
    assert named - known == set()
    for name in ("title", "verify"):
        assert name in report["findings"][0]["fixes"][0]
    for outcome in Outcome:
        assert f"`{outcome}`" in table
    for verdict in Verdict:
        assert f"`{verdict}`" in table
    assert f"`{report['schema']}`" in table


def test_the_keys_of_absent_evidence_are_the_real_ones() -> None:
    whole = Diagnosis(
        outcome=Outcome.UNKNOWN,
        job=Job(),
        hang=None,
        findings=(),
        outcomes=(RuleOutcome("x", Verdict.SKIPPED, "no calls"),),
        inventory=Inventory((), (Unavailable("stacks", "ptrace is forbidden"),)),
    )
    report = json.loads(to_json(whole))
    assert set(report["inventory"]["absent"][0]) == {"what", "reason"}
    assert set(report["outcomes"][0]) == {"rule", "verdict", "reason"}


def test_an_agent_is_told_how_to_behave(written: Path) -> None:
    text = " ".join((written / MAIN).read_text().split())
    for rule in (
        "Evidence before action",
        "Never name a cause that is not established",
        "Never propose a longer timeout",
    ):
        assert rule in text
    assert "undo it" in text
    assert "Never `pkill`" in text


def test_our_own_folder_is_replaced(written: Path) -> None:
    before = (written / MAIN).read_text()
    assert install(written.parent) == 0
    assert (written / MAIN).read_text() == before


def test_an_older_version_of_ours_is_replaced(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.skill.folder.__version__", "9.9.9")
    assert install(written.parent) == 0
    assert 'version: "9.9.9"' in (written / MAIN).read_text()


@pytest.mark.parametrize("how", ["edited", "reference edited", "foreign", "more", "file", "binary"])
def test_what_others_wrote_is_left_alone(how: str, written: Path, capsys: TOLD) -> None:
    main = written / MAIN
    if how == "edited":
        main.write_text(main.read_text() + "\nmy own words\n")
    elif how == "reference edited":
        (written / "references" / "rules.md").write_text("mine")
    elif how == "foreign":
        main.write_text(GOOD)
    elif how == "more":
        (written / "notes.md").write_text("mine")
    elif how == "binary":
        main.write_bytes(b"\xff\xfe\x00")
    else:
        for path in sorted(written.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        written.rmdir()
        written.write_text("a file")
    before = {p: p.read_bytes() for p in written.parent.rglob("*") if p.is_file()}
    assert install(written.parent) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith(f"unhang: {written} ")
    assert "--force" in seen.err
    assert {p: p.read_bytes() for p in written.parent.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("content", [GOOD, "nothing"])
def test_force_overwrites_and_deletes_nothing_else(content: str, written: Path) -> None:
    (written / MAIN).write_text(content)
    (written / "notes.md").write_text("mine")
    assert install(written.parent, "--force") == 0
    assert validate(written) == []
    assert (written / "notes.md").read_text() == "mine"


def test_a_link_is_replaced_not_followed(written: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "precious.md"
    elsewhere.write_text("precious")
    (written / MAIN).unlink()
    (written / MAIN).symlink_to(elsewhere)
    assert install(written.parent, "--force") == 0
    assert elsewhere.read_text() == "precious"
    assert validate(written) == []


def test_a_folder_that_cannot_be_made_is_2(tmp_path: Path, capsys: TOLD) -> None:
    (tmp_path / "file").write_text("")
    assert install(tmp_path / "file" / "skills") == 2
    assert "Not a directory" in capsys.readouterr().err


def test_where_skills_go_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: TOLD) -> None:
    assert default_target(tmp_path) == tmp_path / "skills"
    (tmp_path / ".claude").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli_main.main(["skill", "install"]) == 0
    assert validate(tmp_path / ".claude" / "skills" / NAME) == []
    assert not (tmp_path / "skills").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace("a-skill", "A-Skill"), "name has to be"),
        (GOOD.replace("a-skill", "-a"), "name has to be"),
        (GOOD.replace("a-skill", "a--skill"), "name has to be"),
        (GOOD.replace("a-skill", "a" * 65), "name has to be"),
        (GOOD.replace("a-skill", "another"), "but the folder is"),
        (GOOD.replace("name: a-skill\n", ""), "name has to be"),
        (GOOD.replace("description: Does something. Use when needed.\n", ""), "description is missing"),
        (GOOD.replace("Does something. Use when needed.", ""), "description has to be a text"),
        (GOOD.replace("Does something.", "x" * 1025), "1024 are allowed"),
        (GOOD.replace("Does something.", "Does: something."), "put it in quotes"),
        (GOOD.replace("\n---\n\n", f"\ncompatibility: {'x' * 501}\n---\n\n"), "500 are allowed"),
        (GOOD.replace("\n---\n\n", "\nversion: 1\n---\n\n"), "unknown key 'version'"),
        (GOOD.replace("\n---\n\n", "\nname: twice\n---\n\n"), "twice"),
        (GOOD.replace("\n---\n\n", "\nmetadata: text\n---\n\n"), "metadata has to be a map"),
        (GOOD.replace("\n---\n\n", '\nlicense: "MIT\n---\n\n'), "quote without its end"),
        (GOOD.replace("\n---\n\n", "\nnonsense\n---\n\n"), "no 'key: value'"),
        (GOOD.replace("\n---\n\n", "\n\n"), "has no end"),
        ("# Text\n", "does not begin with"),
        ("", "does not begin with"),
        (GOOD.replace("# Text", ""), "no text after"),
        (GOOD + "line\n" * MAX_BODY_LINES, "fewer than 500"),
        (GOOD + "[a](references/none.md)\n", "leads to nothing"),
        (GOOD + "[a](../other/SKILL.md)\n", "leads out of the skill"),
        (GOOD + "[a](/etc/passwd)\n", "leads out of the skill"),
    ],
)
def test_what_the_format_forbids_is_told(text: str, problem: str, tmp_path: Path, capsys: TOLD) -> None:
    folder = tmp_path / "a-skill"
    folder.mkdir()
    (folder / MAIN).write_text(text)
    assert any(problem in told for told in validate(folder)), validate(folder)
    assert cli_main.main(["skill", "validate", str(folder)]) == 1
    assert problem in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("Does something. Use when needed.", "'Does: something.'"),
        GOOD.replace("Does something. Use when needed.", ">-\n  Does: something.\n  Use when needed."),
        GOOD.replace("Does something. Use when needed.", "Does something.\n  Use when needed."),
        GOOD.replace("\n---\n\n", "\nallowed-tools: Bash(git:*) Read\n---\n\n"),
        GOOD.replace("\n---\n\n", "\nallowed-tools:\n  - Bash(git:*)\n  - Read\n---\n\n"),
        GOOD.replace("\n---\n\n", '\n# a remark\nlicense: MIT\nmetadata:\n  author: me\n  version: "1.0"\n---\n\n'),
        GOOD + "[a](https://example.org) [b](#text) [c](SKILL.md#text)\n",
    ],
)
def test_what_the_format_allows_is_right(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "a-skill"
    folder.mkdir()
    (folder / MAIN).write_bytes(text.encode())
    assert validate(folder) == []


def test_a_folder_without_a_skill_is_told(tmp_path: Path) -> None:
    assert validate(tmp_path) == ["SKILL.md cannot be read: No such file or directory"]
    (tmp_path / MAIN).write_bytes(b"\xff\xfe")
    assert validate(tmp_path) == ["SKILL.md is not UTF-8"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is missing")
def test_the_experiment_in_the_advice_runs(tmp_path: Path) -> None:
    advice = ADVICE["expand-vs-repeat"]
    program = advice.experiment.split("\n", 1)[1].removesuffix("END")
    (tmp_path / "experiment.py").write_text(program)
    done = warm.run([sys.executable, str(tmp_path / "experiment.py")], tmp_path, 50 * slowness())
    (_, _, few, _, first), (_, _, many, _, second) = (line.split() for line in done.stdout.splitlines())
    assert first == second
    assert (int(few), int(many)) == (512 * 1024 * 4, 64 * 512 * 1024 * 4)


def test_the_experiments_that_the_advice_names_exist() -> None:
    named = [f for advice in ADVICE.values() for f in re.findall(r"docs/folklore/\w+\.\w+", advice.experiment)]
    assert named.count("docs/folklore/README.md") == 9
    assert [f for f in named if not (Path(__file__).parents[3] / f).is_file()] == []
