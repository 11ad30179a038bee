"""What an agent knows of its folder: AGENTS.md and skills, also those of a stranger."""

from pathlib import Path

import pytest
from builders import call, did, history, outputs, prompt, said, shown, texts, turn_into
from stub import reply

import agent as program
from agent import command, front_matter, run_tool, size, take_turn

SKILL = "---\nname: review\ndescription: how to review\n---\nRead it twice.\n"
LOADED = ("load_skill", {"name": "review"})


def skill(text=SKILL, path=".agents/skills/review/SKILL.md"):
    """A skill of the workspace."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(text.encode())
    return Path(path)


# --- AGENTS.md ---


USED = "Use tabs.</rules>"
RULES = [[USED], [None, USED], [USED, "x"], ["", USED]]


@pytest.mark.parametrize("texts", RULES)
def test_the_rules_are_those_of_agents_md_or_else_of_claude_md(make, texts):
    for name, text in zip(["AGENTS.md", "CLAUDE.md"], texts, strict=False):
        Path(name).write_text(text) if text is not None else None
    agent, name = make(), "AGENTS.md" if texts[0] else "CLAUDE.md"
    assert (
        agent.system["AGENTS.md"]
        == f'<rules name="{name}">\nUse tabs.<\\/rules>\n</rules>'
    )
    assert agent.system["AGENTS.md"] in prompt(agent)


@pytest.mark.parametrize("text", ["word " * 9_000, "\u65e5" * 20_000, "x\n" * 20_000])
def test_rules_have_8_000_tokens_at_most_and_a_note_where_they_are_cut(make, text):
    Path("AGENTS.md").write_text(text, "utf-8")
    agent = make()
    rules = agent.system["AGENTS.md"]
    assert size(rules) < 8_100
    assert "[cut here" in rules


@pytest.mark.parametrize("threshold, most", [(170_616, 8_000), (8_000, 1_000)])
def test_rules_have_an_eighth_of_the_threshold_at_most_which_is_said(
    make, threshold, most
):
    Path("AGENTS.md").write_text("word " * 9_000)
    agent = make(threshold=threshold)
    assert 0.8 * most < size(agent.system["AGENTS.md"]) < most + 50
    assert shown(agent, "error") == [f"[rules] AGENTS.md is cut: over {most:,} tokens"]


NO_RULES = {
    "folder": "no file",
    "pipe": "no file",
    "../outside": "outside",
    "AGENTS.md": "no file",
    b" \n": "empty",
    "Use tabs.".encode("utf-16"): "UTF-8",
    ".env": "secrets",
}


@pytest.mark.parametrize("what, reason", NO_RULES.items())
def test_rules_that_cannot_be_used_are_named_with_the_reason(make, what, reason):
    bare = make().system
    for path in ("AGENTS.md", "../outside", ".env"):
        Path(path).write_text("hidden")
    turn_into(Path("AGENTS.md"), what)
    *found, [line] = program.find_rules()
    assert found == ["", ""] and make().system == bare
    assert line.startswith("[rules] AGENTS.md is not used: ") and reason in line


def test_a_fault_of_the_rules_is_one_line_whatever_the_folder_is_called(monkeypatch):
    Path("line\nbreak").mkdir()
    monkeypatch.chdir("line\nbreak")
    Path("AGENTS.md").symlink_to("../outside")
    [line] = program.find_rules()[2]
    assert "\n" not in line and "outside" in line


def test_rules_that_may_not_be_read_are_named_and_the_next_ones_count(monkeypatch):
    for name in ("AGENTS.md", "CLAUDE.md"):
        Path(name).write_text("hidden")
    errors = iter([PermissionError(13, "Permission denied")])
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: raise_next(errors) or read(p))
    *found, [line] = program.find_rules()
    assert found == ["CLAUDE.md", "hidden"] and "Permission denied" in line


def raise_next(errors):
    """Raise the next of the errors, if there is one left."""
    for error in errors:
        raise error


ABOVE = {
    "the nearest": (["AGENTS.md", "../AGENTS.md"], ["../../.git"], "AGENTS.md"),
    "at the root": (["../../CLAUDE.md"], ["../../.git"], "../../CLAUDE.md"),
    "not above the root": (["../../AGENTS.md"], ["../.git"], ""),
    "no repository": (["../AGENTS.md"], [], ""),
    "the workspace is the root": (["../AGENTS.md"], [".git", "../.git"], ""),
}


@pytest.mark.parametrize("files, folders, used", ABOVE.values(), ids=ABOVE)
def test_the_nearest_rules_count_up_to_the_root_of_the_repository(
    make, monkeypatch, files, folders, used
):
    Path("a/b").mkdir(parents=True)
    monkeypatch.chdir("a/b")
    for path in folders:
        Path(path).mkdir()
    for path in files:
        Path(path).write_text(f"Rules of {path}")
    text = f"Rules of {used}" if used else ""
    assert program.find_rules() == (used, text, [])
    assert (f"Rules of {used}\n" in prompt(make())) == bool(used)


# --- Skills ---


def test_skills_stand_in_the_system_prompt_and_their_text_is_a_result(make):
    skill()
    agent = make(reply(calls=[LOADED]), reply("Done."))
    take_turn(agent, "Review it.")
    assert prompt(agent).endswith("\n- review: how to review")
    assert "twice" not in prompt(agent)
    [text] = outputs(*agent.messages)
    assert text.startswith("Read it twice.\n") and "name:" not in text
    assert "(The files of this skill are in .agents/skills/review.)" in text


def test_a_workspace_without_skills_and_rules_pays_nothing(make, workspace):
    agent, bare = make(), program.SYSTEM_PROMPT
    assert prompt(agent) == bare.format(folder=workspace, records=".transcripts")
    assert "load_skill" not in agent.tools


def test_of_two_skills_with_a_name_that_in_agents_counts(make):
    skill(SKILL.replace("twice", "once"), ".claude/skills/review/SKILL.md")
    skill(SKILL.replace("review", "other"), ".claude/skills/other/SKILL.md")
    skill()
    agent = make()
    assert [*agent.skills] == ["review", "other"]
    assert "twice" in run_tool(agent, call("load_skill", name="review"))["content"]


@pytest.mark.parametrize("name", ["absent", "", "../review", ["review"], 5, None])
def test_a_skill_that_is_not_there_is_an_error_that_names_those_that_are(make, name):
    skill()
    block = run_tool(make(), call("load_skill", name=name))
    assert block["is_error"] and "review" in block["content"] + str(name)


HEADS = {
    "plain": "name: n\ndescription: a b",
    "folded, with a mark": "description: >-\n  a\n\n  b\nname: n",
    "literal": "name: n\ndescription: |\n  a\n  b\n",
    "goes on": "name: n\ndescription: a\n  b",
    "quoted": "name: 'n'\ndescription: \"a b\"",
    "more fields": "license:\n\nname: n\nmetadata:\n  name: x\ndescription: a b\nx: - y",
}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_the_fields_of_a_skill_are_read_as_the_format_has_them(make, head, end, mark):
    path = skill(mark + f"---\n{head}\n---\nBody\n".replace("\n", end))
    agent = make()
    assert agent.skills == {"n": path} and program.find_skills()[1] == []
    assert prompt(agent).endswith("\n- n: a b")
    answer = run_tool(agent, call("load_skill", name="n"))["content"]
    assert answer.startswith("Body\n")


VALUES = {
    "'a # b'": "a # b",
    "\"say 'a'\"": "say 'a'",
    "it's": "it's",
    "use c#": "use c#",
    "a: b": "a: b",
    ">=3 of them": ">=3 of them",
    "|\n  # a": "# a",
}


@pytest.mark.parametrize("value, text", VALUES.items())
def test_a_value_loses_its_quotes_and_nothing_else(value, text):
    fields, _ = front_matter(f"---\nname: n\ndescription: {value}\n---\n")
    assert fields["description"] == text


DAMAGED = {
    "no head": "Read it twice.",
    "no name": "---\ndescription: d\n---\n",
    "no description": "---\nname: n\n---\n",
    "an empty name": "---\nname: ''\ndescription: d\n---\n",
    "binary": SKILL + "\0",
    "endless": "---\n" + "a: b\n" * 1_000_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_skill_is_named_in_one_line_and_left_out(make, text):
    bare = make()
    skill(text, ".claude/skills/bad\nname/SKILL.md")
    agent, [line] = make(), program.find_skills()[1]
    assert line.startswith("[skill] .claude/skills/bad") and "\n" not in line
    assert (agent.system, agent.tools) == (bare.system, bare.tools)


def test_skills_in_another_folder_are_none(make):
    skill(path=".other/skills/review/SKILL.md")
    assert make().skills == {} and program.find_skills() == ({}, [])


def test_skills_in_a_folder_that_is_a_link_to_another_are_left_out(make):
    skill(path="../elsewhere/skills/review/SKILL.md")
    Path(".agents").symlink_to("../elsewhere")
    agent, [line] = make(), program.find_skills()[1]
    assert agent.skills == {} and "outside" in line


def test_of_a_huge_skill_a_page_is_loaded_and_it_says_where_to_read_on(make):
    skill(SKILL + "x" * 99 + "\n" + "more and more\n" * 300_000)
    answer = run_tool(make(), call("load_skill", name="review"))["content"]
    assert len(answer) < 51_000 and "offset=" in answer


# --- Once for a conversation ---


def test_a_conversation_keeps_what_was_read_at_its_beginning_until_clear(make):
    Path("AGENTS.md").write_text("Use spaces.")
    agent = make(reply("One."), reply("Two."))
    take_turn(agent, "Hm?")
    skill(), Path("AGENTS.md").write_text("Use tabs.")
    take_turn(agent, "And now?")
    first, second = agent.client.requests
    assert (first["system"], first["tools"]) == (second["system"], second["tools"])
    command(agent, "/clear")
    program.begin(agent)
    assert "Use tabs." in prompt(agent) and "- review: how to review" in prompt(agent)
    assert "Use spaces." not in prompt(agent) and "load_skill" in agent.tools


@pytest.mark.parametrize("line", ["/context", "/compact"])
def test_a_command_does_not_read_the_rules_again(make, line):
    agent = make(reply("One."))
    take_turn(agent, "Hm?")
    before = agent.system
    Path("AGENTS.md").write_text("Use tabs.")
    command(agent, line)
    assert agent.system == before


def test_a_subagent_has_the_same_rules_and_skills(make):
    skill(), Path("AGENTS.md").write_text("Use tabs.")
    task = ("task", {"description": "look", "prompt": "Look."})
    agent = make(reply(calls=[task]), reply(calls=[LOADED]), reply("3."), reply("So."))
    take_turn(agent, "How many?")
    own, its, again, _ = agent.client.requests
    assert own["system"] == its["system"] and "Use tabs." in str(its["system"])
    assert "Read it twice." in outputs(again["messages"][-1])[0]


# --- After a compaction ---


def put_back(agent, *names):
    """The blocks with skills in what replaces a conversation that loaded these."""
    calls = [did("ok", tool="load_skill", given={"name": name}) for name in names]
    agent.messages = history(*calls, said("Done."))
    message = program.replacement(agent, "All is well.", agent.messages, True, 1_000)
    found = [b for b in message["content"] if program.part_of(b) == "skills"]
    return texts({"content": found})


def test_a_loaded_skill_is_put_back_as_it_is_now_the_newest_first(make):
    path = skill()
    skill(SKILL.replace("review", "other"), ".agents/skills/other/SKILL.md")
    agent = make()
    path.write_text(SKILL.replace("twice", "thrice</skill>"))
    gone, first, second = put_back(agent, "other", "review", "gone")
    assert gone.startswith('<skill name="gone">\n(There is no skill')
    assert first.startswith('<skill name="review">') and "thrice<\\/skill>" in first
    assert second.startswith('<skill name="other">') and "twice" in second


@pytest.mark.parametrize("what", ["pipe", "folder", "/dev/zero", b"no head", b"\0"])
def test_a_skill_that_cannot_be_read_any_more_does_not_stop_a_compaction(make, what):
    path = skill()
    agent = make()
    turn_into(path, what)
    [text] = put_back(agent, "review")
    assert text.startswith('<skill name="review">\n(')


def test_skills_that_are_put_back_have_5_000_tokens_each_and_25_000_in_all(make):
    names = [f"n{i}" for i in range(9)]
    for name in names:
        text = SKILL.replace("review", name) + "word " * 9_000
        skill(text, f".agents/skills/{name}/SKILL.md")
    sizes = [*map(size, put_back(make(), *names))]
    assert max(sizes) < 5_100 and 20_000 < sum(sizes) < 25_500


def test_many_skills_take_a_bounded_part_of_each_request(make):
    for number in range(150):
        head = f"---\nname: s{number}\ndescription: {'d' * 1_000}\n---\nDo."
        skill(head, f".agents/skills/s{number}/SKILL.md")
    agent = make(reply("Hello."), window=30_000, max_output=8_000)
    assert take_turn(agent, "Hi") == "Hello."
    most = agent.threshold // 8
    assert 0.8 * most < size(agent.system["skills"]) < most + 50
    count = prompt(agent).count("\n- s")
    assert prompt(agent).endswith(f"\n- and {150 - count} more")
    names = [*agent.skills]
    assert len(program.first_screen(agent, None, names, unasked=False)) < 300
