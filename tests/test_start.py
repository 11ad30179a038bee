"""Starting the program: pipes, settings and mistakes."""

import ast
import os
import re
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from builders import (
    HOSTILE,
    bash,
    results,
    typed,
)
from pseudo import PATIENCE
from stub import api_error, reply

import agent as program

# --- Pipes and -p ---


EXACT = "שלום \u200f! ខ្មែរ\u17b4 \U0001f468\u200d\U0001f469\U000e0067"


def test_p_prints_the_answer_to_stdout_and_everything_else_to_stderr(run, api):
    look = reply("I look.", [("glob", {"pattern": "*"})], thinking="Hm, where?")
    api.enqueue(look, reply(f"No {HOSTILE} {EXACT}"))
    status, out, err = run("-p", "what is here?")
    assert (status, out) == (0, f"No {HOSTILE} {EXACT}\n")
    assert "[thinking] Hm, where?\nI look.\n[glob] *" in err and "end" not in err


def test_at_a_terminal_p_prints_what_comes_before_a_call_and_the_answer_once(
    fresh, desk
):
    replies = bash("true") | {"content": [*reply("I look.\nHere.")["content"]]}
    replies["content"] += bash("true")["content"]
    argv = [*desk.argv, "-p", "go", "--yes"]
    user = fresh(replies, reply(f"So, {HOSTILE}"), argv=argv)
    user.see("I look.\nHere.\n[bash]\n  true\n", f"So, {program.visible(HOSTILE)}\n")
    assert user.process.wait(PATIENCE) == 0
    assert user.screen.count("So,") == user.screen.count("I look.") == 1


PIPED = [
    (["-p", "What?"], "", ["What?"]),
    (["-p"], "first line\nsecond line", ["first line\nsecond line"]),
    (["-p", "fix", "the", "bug"], "", ["fix the bug"]),
    (["question"], "and?\n", ["question", "and?"]),
    (["fix", "the", "bug"], "", ["fix the bug"]),
    ([], "first\n\nsecond\nexit\nthird\n", ["first", "second"]),
    ([], "first\n/quit\nthird\n", ["first"]),
]


@pytest.mark.parametrize("argv, stdin, prompts", PIPED)
def test_piped_input_is_one_prompt_per_line_or_with_p_a_single_one(
    run, api, argv, stdin, prompts
):
    api.enqueue(*[reply("Good.")] * len(prompts))
    status, out, _ = run(*argv, stdin=stdin)
    assert (status, out.count("Good.\n")) == (0, len(prompts))
    assert [r["messages"][-1]["content"] for r in api.requests] == prompts


def test_piped_input_is_a_separate_message_before_the_prompt(run, api):
    api.enqueue(reply("Yes."), reply("Yes."))
    run("-p", "What?", stdin="no UTF-8: \udcff")
    assert api.requests[0]["messages"] == [typed("no UTF-8: \ufffd"), typed("What?")]
    rules = "Keep this rule. " * 1_000
    run("-p", rules, stdin="line of a log\n" * 30_000)
    piped, prompt = api.requests[1]["messages"]
    assert prompt == typed(rules) and len(piped["content"]) < 20_000


def test_endless_piped_input_is_an_error_instead_of_filling_the_memory(
    run, api, monkeypatch
):
    monkeypatch.setattr(program, "MAX_BYTES", 1_000)
    api.enqueue(reply("Yes."))
    assert run("-p", "What?", stdin="y\n" * 500)[0] == 0
    status, out, err = run("-p", "What?", stdin="y\n" * 501)
    said = "Over 1,000 bytes are piped in; name a file instead.\n"
    assert (status, out) == (1, "") and err.endswith(said)


def test_p_says_that_it_reads_standard_input_if_nothing_arrives(fresh, desk):
    desk.stub.enqueue(reply("So."))
    read, write = os.pipe()
    argv = [*desk.argv, "-p", "go"]
    user = fresh(argv=argv, stdin=read, constants={"SILENT_SECONDS": 0.2})
    user.see("Reading standard input; close it to go on.\n")
    os.close(write)
    user.see("So.\n")
    assert user.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_an_env_file_that_is_not_utf_8_is_a_one_line_error(run, tmp_path, encoding):
    (tmp_path / ".env").write_text("MODEL_ID=caf\u00e9\n", encoding=encoding)
    status, _, err = run("-p", "Hi")
    assert status == 1
    assert err == f"{tmp_path}/.env is not in UTF-8; save it again as UTF-8.\n"


def test_p_at_a_terminal_asks_for_approval_there(fresh, desk):
    user = fresh(bash("touch file"), reply("So."), argv=[*desk.argv, "-p", "touch it"])
    user.see("Run this command?")
    user.press("y\n")
    user.see("> y\n", "\nSo.\n")
    assert user.process.wait(PATIENCE) == 0 and (user.folder / "file").exists()
    (user.folder / "file").unlink()
    assert termios.tcgetattr(user.keys) == user.usual


def test_in_the_background_p_says_that_it_cannot_ask_instead_of_stopping(fresh, desk):
    start = 'set -m; "$@" & wait $!'  # in a group of its own, as `timeout` does it
    argv = ["/bin/bash", "-c", start, "bash", *desk.argv, "-p", "touch it"]
    user = fresh(bash("touch file"), reply("So."), argv=argv, forked=False)
    user.see("Cannot ask for approval without a terminal; use --yes.", "\nSo.\n")
    assert user.process.wait(PATIENCE) == 0 and not (user.folder / "file").exists()


@pytest.mark.parametrize("key, done", [("y\n", True), ("n\n", False), ("\x1b", False)])
def test_after_a_pipe_the_question_is_answered_at_the_keyboard(fresh, desk, key, done):
    read, write = os.pipe()
    os.write(write, b"y\ny\n")  # what is piped answers nothing
    os.close(write)
    argv = [*desk.argv, "-p", "touch it"]
    user = fresh(bash("touch file"), reply("So."), argv=argv, stdin=read)
    user.see("Run this command?")
    user.watch(0.2)
    assert not (user.folder / "file").exists()
    user.press(key)
    user.see("\nSo.\n")
    assert user.process.wait(PATIENCE) == 0 and (user.folder / "file").exists() is done
    assert termios.tcgetattr(user.keys) == user.usual and user.sent[0] == typed(
        "y\ny\n"
    )


def test_p_at_a_terminal_needs_a_prompt(fresh, desk):
    user = fresh(argv=[*desk.argv, "-p"])
    user.see("The message is empty: say what to do.\n")
    assert user.process.wait(PATIENCE) == 1


def test_without_a_terminal_tools_need_the_yes_flag(run, api):
    for argv, done in ([], False), (["--yes"], True):
        api.enqueue(bash("touch file"), reply("So."))
        status, out, err = run("-p", "touch it", *argv, stdin="y\n")
        assert (status, out) == (0, "So.\n") and "[bash]\n  touch file\n" in err
        [result] = results(api.requests[-1]["messages"][-1])
        assert Path("file").exists() == done != result.get("is_error", False)
        assert ("use --yes" in result["content"]) is not done


def test_a_command_that_would_open_an_editor_does_not_hang(use):
    git = "git -c user.name=me -c user.email=me@here commit --allow-empty"
    use("bash", command=f"git init -q; {git} -m one")
    assert "] one\n" in use("bash", command=f"{git} --amend", timeout=9)


# --- Settings and mistakes ---


def test_settings_come_from_the_flag_the_shell_or_the_programs_env_file(
    run, api, tmp_path
):
    (tmp_path / ".env").write_text("MODEL_ID=beside\nTHRESHOLD=50000  # T")
    Path(".env").write_text("MODEL_ID=mine\nKEEP_RECENT=x")
    api.enqueue(*[reply("Good.")] * 3)
    assert "summary at 50,000, 0% cached" in run(stdin="a\n")[1]
    run("-p", "a", MODEL_ID="shell")
    run("-p", "a", "--model", "given")
    assert [r["model"] for r in api.requests] == ["beside", "shell", "given"]


def test_the_model_may_be_named_as_other_programs_do_if_it_isnt_in_our_own_setting(
    run, api
):
    api.enqueue(*[reply("Good.")] * 3)
    run("-p", "a", ANTHROPIC_MODEL="theirs")
    run("-p", "a", ANTHROPIC_MODEL="theirs", MODEL_ID="ours")
    run("-p", "a", ANTHROPIC_MODEL="", MODEL_ID="")
    assert [r["model"] for r in api.requests] == ["theirs", "ours", program.MODEL_ID]


@pytest.mark.parametrize("name", program.KEY_NAMES)
def test_an_empty_key_in_the_shell_does_not_hide_the_one_in_the_env_file(
    run, api, tmp_path, monkeypatch, name
):
    monkeypatch.setenv(name, "")  # so that it is removed after the test
    (tmp_path / ".env").write_text(f"{name}=key-of-the-env-file")
    api.enqueue(reply("Good."))
    empty = dict.fromkeys(program.KEY_NAMES, " ")
    assert run("-p", "a", **empty)[:2] == (0, "Good.\n")
    assert os.environ[name] == "key-of-the-env-file"


IN_FILE = "MODEL_ID=m ANTHROPIC_VERTEX_ID=x THRESHOLD=50000 KEEP_RECENT=3 GH_TOKEN=own"


def test_commands_get_no_setting_of_the_program_that_only_its_env_file_has(
    run, api, tmp_path, monkeypatch
):
    hidden = {*program.HIDDEN_FROM_COMMANDS}
    monkeypatch.setattr(program, "HIDDEN_FROM_COMMANDS", hidden)
    for name in (names := re.findall(r"\w+(?==)", IN_FILE)):
        monkeypatch.setenv(name, "")  # so that it is removed after the test
        monkeypatch.delenv(name)
    (tmp_path / ".env").write_text(IN_FILE.replace(" ", "\n"))
    api.enqueue(bash(f"env | grep -E '^({'|'.join(names)})=' | sort"), reply("Good."))
    run("-p", "a", "--yes", KEEP_RECENT="4")
    [result] = results(*api.requests[1]["messages"])
    assert result["content"] == "GH_TOKEN=own\nKEEP_RECENT=4\n"


def test_a_command_can_start_another_agent_with_the_same_env_file(
    run, api, desk, tmp_path
):
    shutil.copy(SCRIPT, tmp_path)
    ours = {n: value for n, value in desk.settings.items() if "ANTHROPIC" in n}
    lines = [f"{name}={value}" for name, value in ours.items()]
    (tmp_path / ".env").write_text("\n".join([*lines, "MODEL_ID=mine"]))
    another = f"{sys.executable} {tmp_path}/agent.py -p again < /dev/null"
    api.enqueue(bash(another), reply("Inner."), reply("Outer."))
    run("-p", "go", "--yes", **dict.fromkeys(ours, ""))
    assert [r["model"] for r in api.requests] == ["mine"] * 3


# keys in the shell, keys in .env, and the name that each has in the error, if any
KEY_NAME, TOKEN_NAME = program.KEY_NAMES
TWO_KEYS = [
    ([KEY_NAME], [TOKEN_NAME], f"{KEY_NAME} is set in the shell and {TOKEN_NAME} in "),
    ([TOKEN_NAME], [KEY_NAME], f"{TOKEN_NAME} is set in the shell and {KEY_NAME} in "),
    (
        [TOKEN_NAME],
        [KEY_NAME, TOKEN_NAME],
        f"{TOKEN_NAME} is set in the shell and {KEY_NAME} in ",
    ),
    ([KEY_NAME, TOKEN_NAME], [KEY_NAME], ""),
    ([KEY_NAME], [KEY_NAME], ""),
    ([], [KEY_NAME, TOKEN_NAME], ""),
]


@pytest.mark.parametrize("shell, file, error", TWO_KEYS)
def test_two_keys_from_different_places_are_a_one_line_error(
    run, api, tmp_path, monkeypatch, shell, file, error
):
    api.enqueue(*[reply("Good.")] * (not error))
    (tmp_path / ".env").write_text("".join(f"{n}=of-the-file-0123\n" for n in file))
    for name in program.KEY_NAMES:
        monkeypatch.setenv(name, "")  # so that it is removed after the test
    keys = {
        name: "of-the-shell" if name in shell else "" for name in (KEY_NAME, TOKEN_NAME)
    }
    status, out, err = run("-p", "a", **keys)
    assert (status, out) == ((1, "") if error else (0, "Good.\n"))
    assert not error or (err.startswith(error) and err.count("\n") == 1)


@pytest.mark.slow
def test_help_lists_the_flags_without_loading_the_sdk():
    argv = [sys.executable, "-X", "importtime", program.__file__, "--help"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    parts = r"/help .*\.env file next to .* -p .*answer once and exit;.* --resume "
    parts += r".*continue an earlier conv.* --model .* --yes .* --demo "
    assert re.search(parts, " ".join(done.stdout.split()))
    assert "argparse" in done.stderr and "anthropic" not in done.stderr


def test_a_deprecated_model_answers_without_a_warning_by_the_sdk(fresh, desk):
    argv = [*desk.argv, "-p", "go", "--yes", "--model", "claude-sonnet-4-5"]
    user = fresh(bash("true"), reply("Yes."), argv=argv)
    assert user.leave("") == 0 and "Yes.\n" in user.screen
    assert "deprecated" not in user.screen and "Warning" not in user.screen


MISTAKES = [
    ("Hi", {"ANTHROPIC_API_KEY": ""}, "set ANTHROPIC_API_KEY in the shell or in /"),
    ("Hi", {"THRESHOLD": "many"}, "THRESHOLD=many: give a whole number"),
    ("Hi", {"KEEP_RECENT": "-1"}, "KEEP_RECENT=-1: give a whole number"),
    ("Hi", {"MAX_MESSAGES": "\uff15"}, "MAX_MESSAGES"),
    (
        "Hi --resume go",
        {},
        "conversation go in this folder; give a file or a number from /resume",
    ),
    ("", {}, "empty"),
]


@pytest.mark.parametrize("argv, settings, named", MISTAKES)
def test_a_mistake_by_the_user_gets_a_one_line_error(run, api, argv, settings, named):
    status, out, err = run("-p", *argv.split(), **settings)
    assert (status, out, api.requests) == (1, "", [])
    assert named in err and err.count("\n") == 1


def test_a_missing_package_is_named_with_commands_that_a_debian_python_allows(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr(program, "PACKAGES", ("dotenv", "no_such_package"))
    missing = "anthropic or dotenv is missing: "
    venv = f"{tmp_path}/.venv"
    install = f"{sys.executable} -m venv {venv} && {venv}/bin/pip install -r "
    install += f"{tmp_path}/requirements.txt. Start agent.py with {venv}/bin/python."
    assert run("-p", "hello")[2] == f"{missing}{install}\n"


def test_a_python_without_readline_has_a_prompt_without_editing(fresh, installed):
    code = "import runpy, sys; sys.modules['readline'] = None; "
    code += f"runpy.run_path({str(installed)!r}, run_name='__main__')"
    user = fresh(argv=[sys.executable, "-c", code], NO_COLOR="1")
    user.enqueue(reply("Yes."))
    user.say("is it?", "Yes.", end="\n> ")
    assert user.sent == [typed("is it?")] and user.leave("\x04") == 0


def test_an_error_that_is_a_sentence_gets_no_second_full_stop(make):
    for said in "It ended.", "Why?":
        assert program.describe_error(make(), api_error(400, said)) == said


# --- The script itself ---

SCRIPT = Path(program.__file__)
SOURCE = SCRIPT.read_text("utf-8")
# what an older Python, or Windows, doesn't have
LACKING = ["del itertools.pairwise", "sys.modules['termios'] = None"]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", LACKING)
def test_on_an_older_python_or_on_windows_one_line_says_what_is_needed(lacking):
    code = f"import itertools, runpy, sys; {lacking}; "
    code += f"runpy.run_path({program.__file__!r}, run_name='__main__')"
    argv = [sys.executable, "-c", code, "--demo"]
    done = subprocess.run(argv, capture_output=True, text=True)
    needs = "agent.py needs Python 3.10 or newer, on Linux, macOS or WSL.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", needs)


def test_python_3_8_can_read_the_whole_program_so_that_it_gets_that_line():
    ast.parse(SOURCE, feature_version=(3, 8))
    assert not re.search(
        r"(?m)^ *for \w+ in [^(\[\n]*, \*", SOURCE
    )  # allowed since 3.9


def test_agent_py_requires_the_packages_of_requirements_txt():
    head = re.search(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$", SOURCE)[1]
    fields = dict(line[2:].split(" = ", 1) for line in head.splitlines())
    required = SCRIPT.with_name("requirements.txt").read_text("utf-8").split()
    assert ast.literal_eval(fields["dependencies"]) == required
    assert fields["requires-python"] == '">=3.10"'


def test_each_constant_is_set_once_and_used():
    names = [n for n in ast.walk(ast.parse(SOURCE)) if isinstance(n, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    found = re.findall(r"(?m)^([A-Z][A-Z_0-9]*)(?:: .*)? = ", SOURCE)
    assert [name for name in found if name not in used] == []
    assert len(found) == len({*found}) > 0
