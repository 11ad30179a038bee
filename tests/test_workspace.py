"""AGENTS.md and skills, including hostile ones from a cloned repository."""

from pathlib import Path

import pytest
from builders import SUMMARY, call, outputs, prompt, turn_into
from stub import reply

import agent as program
from agent import run_command, run_tool, take_turn

SKILL = "---\nname: review\ndescription: how to review\n---\nRead it twice.\n"
LOADED = ("load_skill", {"name": "review"})


def skill(text=SKILL, path=".agents/skills/review/SKILL.md"):
    """Create a skill in the workspace; return its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(text.encode())
    return Path(path)


# --- AGENTS.md ---


USED = "Use tabs.</rules>"


@pytest.mark.parametrize(
    "names", [["AGENTS.md"], ["CLAUDE.md"], ["AGENTS.md", "CLAUDE.md"]]
)
def test_rules_come_from_agents_md_or_otherwise_from_claude_md(make, names):
    for name in names:
        Path(name).write_text(USED if name == names[0] else "x")
    agent = make()
    rules = f"<rules>\n{names[0]}:\nUse tabs.<\\/rules>\n</rules>"
    assert agent.system["AGENTS.md"] == rules and rules in prompt(agent)


@pytest.mark.parametrize("threshold, most", [(167_000, 8_000), (8_000, 1_000)])
@pytest.mark.parametrize("text", ["word " * 9_000, "\u65e5" * 20_000, "x\n" * 20_000])
def test_long_rules_are_truncated_with_a_note(make, threshold, most, text):
    Path("AGENTS.md").write_text(text, "utf-8")
    rules = make(threshold=threshold).system["AGENTS.md"]
    assert len(rules.encode()) // 4 < most + 50 and "left out here" in rules


NO_RULES = {
    "folder": "no file",
    "pipe": "no file",
    "../outside": "outside",
    "AGENTS.md": "no file",
    "Use tabs.".encode("utf-16"): "UTF-8",
    ".env": "secrets",
}


@pytest.mark.parametrize("what, reason", NO_RULES.items())
def test_unusable_rules_are_ignored_and_the_reason_is_shown(make, run, what, reason):
    bare = make().system
    for path in ("AGENTS.md", "../outside", ".env"):
        Path(path).write_text("hidden")
    turn_into(Path("AGENTS.md"), what)
    fault, text = program.find_rules()
    assert text == "" and reason in fault and make().system == bare
    assert f"\nAGENTS.md is not used: {fault[23:]}; /help\n" in run(stdin="")[1]


def test_blank_rules_are_ignored(make):
    bare = make().system
    Path("AGENTS.md").write_text(" \n")
    assert make().system == bare


ABOVE = {
    "nearest": (["AGENTS.md", "../AGENTS.md"], ["../../.git"], "AGENTS.md"),
    "at the root": (["../../CLAUDE.md"], ["../../.git"], "../../CLAUDE.md"),
    "above the root": (["../../AGENTS.md"], ["../.git"], ""),
    "no repository": (["../AGENTS.md"], [], ""),
    "workspace is the root": (["../AGENTS.md"], [".git", "../.git"], ""),
}


@pytest.mark.parametrize("files, folders, used", ABOVE.values(), ids=ABOVE)
def test_rules_are_searched_upwards_to_the_root_of_the_repository(
    make, monkeypatch, files, folders, used
):
    Path("a/b").mkdir(parents=True)
    monkeypatch.chdir("a/b")
    for path in folders:
        Path(path).mkdir()
    for path in files:
        Path(path).write_text(f"Rules of {path}")
    text = f"Rules of {used}" if used else ""
    assert program.find_rules() == (used, text)
    assert (f"Rules of {used}\n" in prompt(make())) == bool(used)


# --- Skills ---


def test_the_system_prompt_lists_skills_and_a_tool_loads_their_text(make):
    skill()
    agent = make(reply(calls=[LOADED]), reply("Done."))
    take_turn(agent, "Review it.")
    assert prompt(agent).endswith("\n- review: how to review")
    assert "twice" not in prompt(agent)
    [text] = outputs(*agent.messages)
    assert text.startswith(SKILL.strip())
    assert "(The files for this skill are in .agents/skills/review.)" in text


def test_without_skills_and_rules_the_prompt_has_nothing_extra(make, workspace):
    agent, bare = make(), program.SYSTEM_PROMPT
    assert prompt(agent) == bare.format(folder=workspace, records=".transcripts")
    assert "load_skill" not in agent.tools


def test_a_skill_in_agents_overrides_one_of_the_same_name_in_claude(make):
    skill(SKILL.replace("twice", "once"), ".claude/skills/review/SKILL.md")
    skill(SKILL, ".claude/skills/other/SKILL.md")
    skill()
    agent = make()
    assert sorted(program.find_skills()) == ["other", "review"]
    assert "twice" in run_tool(agent, call("load_skill", name="review"))["content"]


@pytest.mark.parametrize("name", ["absent", "", "../review", ["review"], 5, None])
def test_an_unknown_skill_is_an_error_that_lists_the_known_ones(make, name):
    skill()
    block = run_tool(make(), call("load_skill", name=name))
    assert block["is_error"] and "review" in block["content"] + str(name)


HEADS = {
    "name: n\ndescription: a b": "a b",
    "description: >-\n  a\n\n  b\nname: n": "a b",
    "description: |\n  a\n  b\n": "a b",
    "description: a\n  b\nx: y": "a b",
    "name: n": "",
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("head, description", HEADS.items())
def test_a_skill_is_listed_by_its_folder_and_description(make, head, description, end):
    skill(f"---\n{head}\n---\nBody\n".replace("\n", end))
    assert prompt(make()).endswith(f"\n- review: {description}")


@pytest.mark.parametrize("what", ["pipe", "folder", "../outside", b"\0"])
def test_an_unreadable_skill_is_left_out(make, what):
    bare = make().system
    turn_into(skill(), what)
    assert make().system == bare


def test_a_huge_skill_loads_one_page_and_says_where_to_continue(make):
    skill(SKILL + "x" * 99 + "\n" + "more and more\n" * 300_000)
    answer = run_tool(make(), call("load_skill", name="review"))["content"]
    assert len(answer) < 51_000 and "offset=" in answer


# --- Read once per conversation ---


def test_rules_and_skills_are_read_at_the_start_and_after_clear(make):
    Path("AGENTS.md").write_text("Use spaces.")
    agent = make(reply("One."), reply("Two."))
    take_turn(agent, "Hm?")
    skill(), Path("AGENTS.md").write_text("Use tabs.")
    take_turn(agent, "And now?")
    first, second = agent.client.requests
    assert (first["system"], first["tools"]) == (second["system"], second["tools"])
    run_command(agent, "/clear")
    program.make_ready(agent)
    assert "Use tabs." in prompt(agent) and "- review: how to review" in prompt(agent)
    assert "Use spaces." not in prompt(agent) and "load_skill" in agent.tools


@pytest.mark.parametrize("line", ["/context", "/compact"])
def test_commands_do_not_reload_the_rules(make, line):
    agent = make(reply("One. " * 1_000), *[SUMMARY] * (line == "/compact"))
    take_turn(agent, "Hm?")
    before = agent.system
    Path("AGENTS.md").write_text("Use tabs.")
    run_command(agent, line)
    assert agent.system == before


def test_a_subagent_has_the_same_rules_and_skills(make):
    skill(), Path("AGENTS.md").write_text("Use tabs.")
    task = ("task", {"description": "look", "prompt": "Look."})
    agent = make(reply(calls=[task]), reply(calls=[LOADED]), reply("3."), reply("So."))
    take_turn(agent, "How many?")
    own, its, again, _ = agent.client.requests
    assert own["system"] == its["system"] and "Use tabs." in str(its["system"])
    assert "Read it twice." in outputs(again["messages"][-1])[0]


# --- Limits ---


def test_the_list_of_skills_has_a_maximum_size(make):
    for number in range(150):
        head = f"---\nname: s{number}\ndescription: {'d' * 1_000}\n---\nDo."
        skill(head, f".agents/skills/s{number}/SKILL.md")
    agent = make(reply("Hello."), context_window=30_000, max_output=8_000)
    assert take_turn(agent, "Hi") == "Hello."
    text = agent.system["skills"]
    assert len(text.encode()) // 4 < agent.limits.threshold // 8 + 50
    assert "left out here" in text and "- s99" in text
