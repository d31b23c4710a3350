"""Settings: where each value comes from, what wins, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.__main__ import main
from nbagent.contracts.errors import UsageError
from nbagent.notebook import reports
from nbagent.session.project_trust import trust_items
from nbagent.settings.options import RunOptions, Settings, checked_value
from nbagent.settings.project_items import allow_item
from nbagent.settings.sources import current_settings, setting_origins, store_home


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def source_of(name: str) -> tuple[Any, str]:
    found = setting_origins()[name]
    return found.value, found.source


def files(folder: Path, *, own: str = "", project: str = "", allowed: bool = False) -> None:
    """Write the person's file and the project's, whose values the person `allowed`."""
    config = folder / "config" / "nbagent"
    config.mkdir(parents=True, exist_ok=True)
    (config / "settings.toml").write_text(own, "utf-8")
    (folder / "pyproject.toml").write_text(f"[tool.nbagent]\n{project}\n", "utf-8")
    for item in trust_items() if allowed else ():
        allow_item(item)


def from_environment(**values: object) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(f"NBAGENT_{name.upper()}", str(value))
        return current_settings()


def test_each_layer_wins_over_the_ones_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    for number, source in enumerate(
        ("default", "pyproject.toml", "settings.toml", "environment", "configure")
    ):
        values = [f"top_p = 0.{n}" if n <= number else "" for n in (1, 2)]
        files(tmp_path, project=values[0], own=values[1], allowed=True)
        if number >= 3:
            monkeypatch.setenv("NBAGENT_TOP_P", "0.3")
        if number >= 4:
            nbagent.configure(top_p=0.4)
        assert source_of("top_p") == (number / 10 or None, source)
    nbagent.configure(top_p=None)
    assert source_of("top_p") == (0.3, "environment")


def test_the_common_variables_name_model_and_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_MODEL", "openai:m")
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:1/v1")
    assert current_settings().model == "openai:m"
    assert current_settings().base_url == "http://127.0.0.1:1/v1"
    assert from_environment(model="ollama:n").model == "ollama:n"


UNREADABLE = (
    *("[tool.nbagent]\nmaxturns = 4\n", "[tool.nbagent\n", "max_turns = \n", "\xff"),
    *("tool = 5\n", "[tool]\nnbagent = 5\n", "a = " + "[" * 5000),
)


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: repr(text)[:40])
def test_a_file_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text, "latin-1")
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        current_settings()


ADDRESSES = [
    *("http://127.0.0.1:1/v1", "https://h/v1", "http://[::1]:8000/v1", "HTTPS://Example.com"),
    *("localhost:8000/v1", "localhost", "api.example.com/v1", "127.0.0.1:8000"),
    *("http://my_host:80/v1", "https://bücher.example/v1", "https://h/a@b/v1"),
    *(f"https://h/v1?api-version={it}" for it in ("2024-10-21", "2025-04-01-preview", "preview")),
]
FIT: dict[str, list[tuple[Any, Any]]] = {
    "base_url": [
        *((url, url) for url in ADDRESSES),
        *(
            (blanks.format("http://h/v1"), "http://h/v1")
            for blanks in (" {}", "{} ", "\t{}\r\n", "\u00a0{}\u200b", "\ufeff{}")
        ),
    ],
    "max_turns": [("7", 7)],
    "temperature": [("0.5", 0.5)],
    "system": [("", "")],
    "model": [(None, None), ("a", "a"), ("ollama:a b", "ollama:a b")],
    "stream": [("off", False), (True, True)],
    "template": [("off", False), (True, True)],
    "tools": [("all", "all"), ("a, b c", ("a", "b", "c")), (["a"], ("a",))],
    "stop_sequences": [("a b", ("a b",)), (["\n", "END"], ("\n", "END"))],
    "reasoning": [("LOW", "low"), ("off", "none"), (2048, "2048")],
    "deny": [
        ("f(path=a b.md, x=y), mcp:git", ("f(path=a b.md, x=y)", "mcp:git")),
        ('f(tags=["a", "b"]) g', ('f(tags=["a", "b"])', "g")),
    ],
    "headers": [('{"X-A": "b"}', {"X-A": "b"})],
    "extra_body": [('{"seed": 7, "a": [true]}', {"seed": 7, "a": [True]})],
}


@pytest.mark.parametrize("name", FIT)
def test_values_come_in_their_right_type(name: str) -> None:
    for given, value in FIT[name]:
        assert checked_value(name, given) == value
        if name in RunOptions.rows():
            assert getattr(RunOptions(**{name: given}), name) == value


def test_configure_changes_nothing_when_one_value_is_wrong() -> None:
    nbagent.configure(max_turns=10)
    before = current_settings()
    for wrong in ({"temperature": 0.5, "top_p": 5}, {"max_requests": 5}, {"max_turns": 60}):
        with pytest.raises(UsageError):
            nbagent.configure(**wrong)
        assert current_settings() == before
    with pytest.raises(UsageError, match=r"the other with nbagent\.configure\(max_requests=60\)"):
        nbagent.Agent("offline:demo", max_turns=60).run("Go.")
    nbagent.configure(max_turns=60, max_requests=60)
    assert current_settings().max_turns == 60


def test_the_store_is_beside_the_notebook_unless_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NBAGENT_HOME")
    assert store_home() == tmp_path / ".nbagent"
    monkeypatch.setenv("NBAGENT_HOME", "~/kept")
    assert store_home() == Path.home() / "kept"
    monkeypatch.setenv("NBAGENT_HOME", "~nobody_x/y")
    with pytest.raises(UsageError, match="NBAGENT_HOME='~nobody_x/y' is not a path"):
        store_home()


WITH_A_KEY = """http://h/v1?api-key=SECRET http://h/v1#SECRET http://h/v1?api-version=SECRET
http://h/v1?api-version=2024-10-21&key=SECRET localhost:8000/v1?SECRET http://user:SECRET@h/v1"""
NO_ADDRESSES = [
    *("javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "ftp://h/v1", "http://"),
    *("https:///v1", "http:/h/v1", "/v1", "://h", "http://h:port/v1", "http://h:999999/v1"),
    *("http://[::1/v1", "http://a b/v1", "http://h/ v1", "java\nscript://h"),
]


@pytest.mark.parametrize("url", [*WITH_A_KEY.split(), *NO_ADDRESSES])
def test_a_base_url_that_is_no_address_or_may_hold_a_key_is_refused_at_each_door(url: str) -> None:
    doors: list[Any] = [nbagent.configure, RunOptions, from_environment]
    for ask in doors:
        with pytest.raises(UsageError, match=r"must be an address.* LLM_API_KEY") as refused:
            ask(base_url=url)
        assert "SECRET" not in str(refused.value)


LIMITS: dict[str, tuple[str, str, Any, bool]] = {
    "rules are added": ('deny = ["fs"]', 'deny = ["zzz"]', ("fs", "zzz"), True),
    "a number of one's own": ("max_read_bytes = 1000", "max_read_bytes = 9999999", 1000, False),
    "a default": ("", "script_timeout_s = 5", 5, True),
    "no less than a default": ("", "script_timeout_s = 500", 120, False),
    "turns": ("max_turns = 5", "max_turns = 40", 5, False),
    "turns by default": ("", "max_turns = 40", 20, False),
    "fewer turns": ("max_turns = 5", "max_turns = 4", 4, True),
    "requests": ("", "max_requests = 500", 50, False),
    "fewer requests than turns": ("max_turns = 30", "max_requests = 10", 10, True),
    "equal calls": ("", "max_repeated_failures = 99", 3, False),
    "time": ("timeout_s = 30", "timeout_s = 3000", 30, False),
    "tokens": ("max_total_tokens = 100", "max_total_tokens = 5000", 100, False),
    "tokens of nobody": ("", "max_total_tokens = 5000", 5000, True),
    "cost": ("max_cost_usd = 9", "max_cost_usd = 5", 5, True),
    "a model of one's own": ("model = 'openai:a'", "model = 'deepseek:b'", "openai:a", False),
    "a system prompt of one's own": ("system = 'My words.'", "system = 'b'", "My words.", False),
    "tools of one's own": ("tools = 'none'", "tools = 'fs'", "none", False),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_project_may_tighten_and_not_loosen(case: str, tmp_path: Path) -> None:
    own, project, value, tightened = LIMITS[case]
    files(tmp_path, own=own, project=project, allowed=True)
    name = project.partition(" ")[0]
    assert getattr(current_settings(), name) == value
    assert ("pyproject.toml" in source_of(name)[1]) == tightened
    assert current_settings().max_turns <= current_settings().max_requests


NO = "which a project may not set: it is not used; remove the line from [tool.nbagent]"
PROGRAM = "which would start a program without your consent: it is not used"
IGNORED = {
    "allow = ['fs.write']": f"sets allow, {NO}",
    "base_url = 'https://evil.example'": f"sets base_url, {NO}",
    'headers = \'{"X-A": "b"}\'': f"sets headers, {NO}",
    "cassette = 'runs/a.jsonl'": f"sets cassette, {NO}",
    "skills = ['.']": f"sets skills, {NO}",
    "mounts = ['h=~:rw']": f"sets mounts, {NO}",
    "variables = ['A=b']": f"sets variables, {NO}",
    "key_variable = 'AWS_SECRET_ACCESS_KEY'": f"sets key_variable, {NO}",
    "extra_body = '{}'": f"sets extra_body, {NO}",
    "audit = 'none'": f"sets audit, {NO}",
    "tools = ['mcp:evil']": f"sets tools 'mcp:evil', {PROGRAM}",
    "tools = 'all'": f"sets tools 'all', {PROGRAM}",
    "tools = 'ALL'": f"sets tools 'ALL', {PROGRAM}",
    "tools = 'mcp'": f"sets tools 'mcp', {PROGRAM}",
    "tools = ['mcp.git']": f"sets tools 'mcp.git', {PROGRAM}",
    "tools = ['fs', 'MCP:git']": f"sets tools 'MCP:git', {PROGRAM}",
    "tools = ['Mcp.git:x']": f"sets tools 'Mcp.git:x', {PROGRAM}",
    "tools = 'fs, evil__run'": f"sets tools 'evil__run', {PROGRAM}",
    'tools = ["\\nevil__run"]': f"sets tools '\\nevil__run', {PROGRAM}",
    "model = 'local:a.gguf'": f"sets model 'local:a.gguf', {PROGRAM}",
    "model = 'LOCAL:a.gguf'": f"sets model 'LOCAL:a.gguf', {PROGRAM}",
    "model = 'local'": f"sets model 'local', {PROGRAM}",
    "model = '\t\u00a0local:a.gguf'": "sets model, which is not valid (expected ",
    'model = "\\u001flocal:a.gguf"': "sets model, which is not valid (expected ",
    "temperature = 'warm'": "sets temperature, which is not valid (expected ",
    "tempratur = 1": "sets 'tempratur', which is no option (did you mean 'temperature'?): it is",
    "api_key = 'sk-0123456789'": "sets 'api_key', which is no option",
    '"a\\u001b[2J" = 1': "sets 'a\\x1b[2J', which is no option: it is not used",
    "allow = ['fs']\nbase_url = 'http://h'": "sets allow and base_url, which a project may not "
    "set: they are not used; remove the lines from",
}
MAY_BE_SET = """model system tools max_turns max_requests max_repeated_failures max_repeated_results
max_total_tokens max_cost_usd
timeout_s temperature top_p max_tokens stop_sequences reasoning trim session stream ask deny
max_read_bytes max_write_bytes search_timeout_s script_timeout_s script_memory_bytes
script_disk_bytes script_output_bytes"""


def test_a_project_may_set_no_option_that_is_not_on_this_list() -> None:
    allowed = {name for name, row in Settings.rows().items() if row.project != "no"}
    assert allowed == set(MAY_BE_SET.split())


@pytest.mark.parametrize("lines", IGNORED)
def test_a_line_that_reaches_further_is_not_used_and_said_once(tmp_path: Path, lines: str) -> None:
    files(tmp_path)
    without = setting_origins()
    files(tmp_path, project=lines, allowed=True)
    assert setting_origins() == without
    said = f"pyproject.toml {IGNORED[lines]}"
    dry, first, second = (
        nbagent.Agent("offline:demo").dry_run("Go.").run.notices,
        *(nbagent.Agent("offline:demo").run("Go.").record.notices for _ in range(2)),
    )
    assert [said in text for text in dry] == [said in text for text in first] == [True]
    assert second == ()
    for report in (str(reports.doctor()), str(reports.config())):
        assert said in " ".join(report.split())
        assert "sk-0123456789" not in report


STOPPING = {
    "a broken file": ("[tool.nbagent\n", "cannot be read"),
    "a rule that is none": ("[tool.nbagent]\ndeny = ['(']\n", "correct or remove the line"),
    "a limit that is none": ("[tool.nbagent]\nmax_turns = 0\n", "correct or remove the line"),
    "a misspelt limit": ("[tool.nbagent]\nmax-turn = 2\n", "did you mean 'max_turns'? Correct or"),
}


@pytest.mark.parametrize("case", STOPPING)
def test_a_limit_or_rule_never_vanishes_and_what_explains_it_still_works(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, way_out = STOPPING[case]
    nbagent.Agent("offline:demo").run("Go.")
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=re.escape(way_out)):
        nbagent.Agent("offline:demo").run("Go.")
    nbagent.configure(temperature=1)
    assert way_out in " ".join(str(reports.config()).split())
    capsys.readouterr()
    for command in (["doctor"], ["trust"], ["runs"], ["show"]):
        assert main(command) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert (way_out in printed) == (command[0] in ("doctor", "trust")), printed


def test_what_is_mine_is_not_sent_to_a_server_that_a_project_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_API_KEY", "sk-mine-0123456789abcdef")
    monkeypatch.setenv("WORK_KEY", "sk-work-0123456789abcdef")
    mine = 'key_variable = "WORK_KEY"\nheaders = { X-Corp = "corporate" }\n'
    mine += 'extra_body = { team = "blue" }'
    files(tmp_path, own=mine, project='model = "deepseek:m"', allowed=True)
    with ModelServer() as server:
        monkeypatch.setenv("DEEPSEEK_BASE_URL", server.url)
        nbagent.Agent(tools="none").run("Hello.").raise_for_error()
    (request,) = server.requests
    sent = f"{request.headers} {request.body}"
    assert not [word for word in ("sk-work", "corporate", "blue") if word in sent], sent


def test_the_text_of_a_header_is_hidden_where_a_model_repeats_it() -> None:
    with ModelServer([Reply(text="You are of confidential-team, by text/plain.")]) as server:
        headers = {"X-Team": "confidential-team", "Accept": "text/plain"}
        run = nbagent.Agent("openai:m", base_url=server.url, headers=headers).run("Who?")
    assert run.text == "You are of [redacted], by text/plain."


ODD: dict[str, list[Any]] = {
    "deny": ["(", "fs.write(", '["fs.write"]', "a b(c"],
    "max_turns": ["0", -1, "many", True, 1.5, float("inf"), float("nan")],
    "max_tokens": [10**400],
    "temperature": [2.01, "warm", 10**400, float("nan")],
    "top_p": [-1, 1.1],
    "timeout_s": [0],
    "retries": [-1, 11, "2.0"],
    "stop_sequences": [[1]],
    "name": [5],
    "session": [""],
    "stream": ["perhaps"],
    "tools": [5, [5], "none, a"],
    "model": ["", " ", " a:b", "a:b\n", 5],
    "system": [5],
    "reasoning": ["lots", "0", "02048", "-5", "1.5", "", True],
    "cache": ["on", "", True],
    "cassette": ["a.json", 5, "a\n.jsonl"],
    "headers": [
        *("X-A: b", '["X-A"]', {"X A": "b"}, {"X": "a\nb"}, {"X": 5}, {"Host": "7"}),
        *({"content-length": "7"}, {"Connection": "7"}, '{"Transfer-Encoding": "chunked"}'),
    ],
    "extra_body": ["seed=7", "[1]", {"a": {1}}, {"a": float("nan")}, 5],
    "organization_id": ["", 5, "a\r\nX: b", "ä"],
}


@pytest.mark.parametrize("name", ODD)
def test_a_value_that_does_not_fit_is_refused(name: str) -> None:
    doors: list[Any] = [RunOptions] if name in RunOptions.rows() else []
    doors += [nbagent.Agent] if doors and name not in ("model", "tools") else []
    doors += [nbagent.configure] if name in Settings.rows() else []
    said = "is not a pattern" if name == "deny" else f"{name}.* is not valid; expected "
    for ask, given in product(doors, ODD[name]):
        with pytest.raises(UsageError, match=said) as caught:
            ask(**{name: given})
        assert "\n" not in str(caught.value)


KEYS = ["sk-proj-Ab1", "gsk_abcdef", "AIzaSyAbc", "x" * 30 + "1", "a b", "MY-KEY", "", 5, "hf_aBc"]
NAMES = ["api_key", "key", "openai_api_key", "apikey", "token", "secret"]


@pytest.mark.parametrize(
    ("name", "given"),
    [*(("key_variable", given) for given in KEYS), *((name, "sk-SECRET") for name in NAMES)],
)
def test_what_may_be_a_key_is_refused_at_each_door_and_not_shown(name: str, given: Any) -> None:
    agent = nbagent.Agent("offline:demo")
    doors: list[Any] = [nbagent.configure, nbagent.Agent, RunOptions, partial(agent.run, "Go.")]
    doors += [from_environment] if given and name == "key_variable" else []
    for ask in doors:
        with pytest.raises(UsageError, match=r"key_variable=") as caught:
            ask(**{name: given})
        assert not given or str(given) not in str(caught.value)


@pytest.mark.parametrize("kind", [RunOptions, Settings])
def test_each_row_of_the_table_is_whole(kind: type[RunOptions] | type[Settings]) -> None:
    for name, row in kind.rows().items():
        assert row.name == name
        assert row.help
        assert row.checked(row.default) == row.default, "a default fits, and stays what it is"
        assert all(row.checked(word) is not None for word in row.choices if name != "tool_choice")
        assert not (row.project != "no" and (row.server_specific or row.secret))
        assert row.metavar or not row.usage or row.flag_value is not None
    held: Any = kind(**{name: row.default for name, row in kind.rows().items()})
    with pytest.raises(AttributeError):
        held.model = "another"


def test_a_run_reads_the_file_of_the_project_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, project="max_turns = 3\nmodel = 'offline:demo'")
    opened: list[str] = []
    read_text: Callable[..., str] = Path.read_text

    def counted(path: Path, *args: Any, **options: Any) -> str:
        opened.append(path.name)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    run = nbagent.Agent("offline:demo", tools="none").run("Go.")
    assert run.record.limits.max_turns == 3
    assert opened.count("pyproject.toml") == 1
