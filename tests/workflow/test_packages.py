"""Packages: read from a folder, a zip or step files; what is wrong is said all at once."""

from __future__ import annotations

import dataclasses
import stat
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.errors import UsageError
from nbagent.workflow.graph import Edge, Package, PackageError, Problem
from nbagent.workflow.package import load_package

FIELD_NOTES = Path(__file__).parent / "packages" / "field-notes"
GRAPH = """\
{
  "nodes": [
    {"id": "plan", "stepFile": "steps/plan.md", "agentId": "mira"},
    {"id": "write", "stepFile": "@pkg/steps/write.md", "inputs": ["plan.md", "@pkg/assets/form.md"],
     "outputsMap": {"draft": "out/draft.md"}},
    {"id": "check", "stepFile": "{bundle-root}/steps/check.md"},
    {"id": "done", "stepFile": "steps/done.md", "terminal": true},
    {"id": "stop", "stepFile": "steps/done.md", "terminal": true}
  ],
  "edges": [
    {"from": "plan", "to": "write"},
    {"from": "write", "to": "check", "label": "next"},
    {"from": "check", "to": "write", "label": "again", "condition": "it is not good yet"},
    {"from": "check", "to": "done", "label": "good"},
    {"from": "plan", "to": "stop", "label": "nothing to do"}
  ]
}
"""
GOOD = {
    "workflow.md": (
        "---\nid: report\nname: A report\nagents: [mira]\nconfig:\n  out: '@project/out'\n---\n"
        "Write for {reader} into {config:out}.\n"
    ),
    "workflow.graph.json": GRAPH,
    "agents/mira.md": "---\nid: mira\nname: Mira\n---\nYou are Mira.\n",
    "steps/plan.md": "Plan.\n",
    "steps/write.md": "Write for {reader} on {topic}.\n",
    "steps/check.md": "Check.\n",
    "steps/done.md": "Say so.\n",
    "assets/form.md": "# Form\n",
}


def put(root: Path, files: Mapping[str, str | bytes | None]) -> Path:
    for name, text in files.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def zipped(file: Path, files: Mapping[str, str | bytes | None], top: str = "") -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            if text is not None:
                archive.writestr(top + name, text)
    return file


def faults_of(path: Path, cache: Path | None = None) -> tuple[Problem, ...]:
    with pytest.raises(PackageError) as raised:
        load_package(path, cache=cache)
    for fault in raised.value.problems:
        assert str(fault) in str(raised.value)
        assert "\n" not in fault.text
        assert not fault.text.endswith(".")
    assert "/tmp" not in "".join(fault.text for fault in raised.value.problems)
    return raised.value.problems


def test_a_package_with_a_branch_and_a_loop_is_read(tmp_path: Path) -> None:
    package = load_package(put(tmp_path / "it", GOOD), values={"reader": "all"})
    assert (package.id, package.name, package.agent) == ("report", "A report", "mira")
    assert (package.main_file, package.graph_file) == ("workflow.md", "workflow.graph.json")
    assert package.graph.entry == "plan"
    assert [*package.graph.nodes] == ["plan", "write", "check", "done", "stop"]
    assert package.graph.nodes["write"].step_file == "steps/write.md"
    assert package.graph.nodes["check"].step_file == "steps/check.md"
    assert package.graph.nodes["write"].inputs == ("@project/plan.md", "@pkg/assets/form.md")
    assert package.graph.nodes["write"].outputs == (("draft", "@project/out/draft.md"),)
    assert package.graph.edges_from("check") == (
        Edge(source="check", target="write", label="again", condition="it is not good yet"),
        Edge(source="check", target="done", label="good"),
    )
    assert package.rules == "Write for all into @project/out.\n"
    assert package.template == GOOD["workflow.md"]
    assert package.unfilled == ("{topic}",)
    assert package.values == {"out": "@project/out", "reader": "all"}
    assert package.notes == ()
    agent = package.agent_of("write")
    assert agent is not None
    assert agent.persona == "You are Mira."


J, W, A = "workflow.graph.json", "workflow.md", "agents/mira.md"
TO_STOP = ',\n    {"from": "plan", "to": "stop", "label": "nothing to do"}'
Expected = list[tuple[str, int | None, str]]


def graph(*pairs: tuple[str, str]) -> dict[str, str]:
    """The good graph with texts in it replaced."""
    text = GRAPH
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return {J: text}


def head(front: str) -> dict[str, str]:
    return {W: f"---\n{front}\n---\nRules.\n"}


def agent(front: str) -> dict[str, str]:
    return {A: f"---\nid: mira\nname: Mira\n{front}\n---\nYou are Mira.\n"}


def output(path: str) -> dict[str, str]:
    return graph(('"out/draft.md"', f'"{path}"'))


def needs(path: str) -> dict[str, str]:
    return graph(('"plan.md"', f'"{path}"'))


BAD_GRAPHS: dict[str, tuple[dict[str, Any], Expected]] = {
    "no node for an edge": (
        graph(('"to": "check"', '"to": "chekc"')),
        [
            (J, 4, "nothing follows 'write'"),
            (J, 12, "no node 'chekc'"),
            (W, None, "2 nodes (plan, check)"),
        ],
    ),
    "id twice": (
        graph(('"id": "stop"', '"id": "done"')),
        [(J, 8, "used twice, first at workflow.graph.json:7"), (J, 15, "no node 'stop'")],
    ),
    "unreachable": (
        graph((TO_STOP, "")) | head("entry: plan"),
        [(J, 8, "'stop' cannot be reached from 'plan'")],
    ),
    "none to begin with": (
        graph(('"label": "good"}', '"label": "good"}, {"from": "check", "to": "plan"}')),
        [(W, None, "no node could be the entry")],
    ),
    "two entries": (head("entry: [plan, stop]"), [(W, 2, "2 entries (plan, stop)")]),
    "unknown entry": (head("name: x\nentry: begin"), [(W, 3, "no node 'begin'")]),
    "cycle without an exit": (
        graph((',\n    {"from": "check", "to": "done", "label": "good"}', ""))
        | head("entry: plan"),
        [(J, 4, "out of the cycle write, check"), (J, 7, "'done' cannot be reached from 'plan'")],
    ),
    "on from a terminal node": (
        graph(('"label": "good"}', '"label": "good"}, {"from": "done", "to": "check"}')),
        [(J, 7, "'done' is terminal and has edges")],
    ),
    "to itself": (
        graph(('"label": "good"}', '"label": "good"},\n{"from": "check", "to": "check"}')),
        [(J, 15, "to itself")],
    ),
    "one pair twice": (
        graph(('"label": "good"}', '"label": "good"},\n{"from": "check", "to": "done"}')),
        [(J, 15, "a second edge leads from 'check' to 'done'")],
    ),
    "no step file": ({"steps/check.md": None}, [(J, 6, "no file steps/check.md")]),
    "step file outside": (
        graph(("steps/plan.md", "@project/plan.md")),
        [(J, 3, "outside of the package")],
    ),
    "step file above": (graph(("steps/plan.md", "../plan.md")), [(J, 3, "'..' leads out")]),
    "step file is not text": ({"steps/plan.md": b"\xff"}, [("steps/plan.md", None, "UTF-8")]),
    "no agent": (graph(('"mira"', '"lena"')), [(J, 3, "no agent 'lena'; there are: mira")]),
    "no JSON": (graph(('"mira"}', '"mira"')), [(J, 4, "it is not JSON that can be read")]),
    "too deep": ({J: "[" * 100_000}, [(J, 1, "it is not JSON that can be read")]),
    "too large": ({J: " " * 1_100_000}, [(J, None, "more than 200,000 bytes")]),
    "no object": ({J: "[]"}, [(J, 1, "not a JSON object")]),
    "no nodes": ({J: '{"nodes": [], "edges": []}'}, [(J, 1, "it has no node")]),
    "key twice": (
        graph(('"agentId": "mira"', '"id": "plan", "agentId": "mira"')),
        [(J, 3, "'id' is here twice")],
    ),
    "unknown keys": (
        graph(("outputsMap", "outputMap"), ('"label": "good"', '"lable": "good"')),
        [(J, 4, "no key 'outputMap'"), (J, 14, "no key 'lable'")],
    ),
    "wrong types": (
        graph(
            ('["plan.md", "@pkg/assets/form.md"]', '"plan.md"'),
            ('{"draft": "out/draft.md"}', '["out/draft.md"]'),
            ("true}\n", '"yes"}\n'),
            ('"label": "good"', '"label": 1'),
        ),
        [
            (J, 4, "inputs is a list"),
            (J, 4, "outputsMap is not a list of"),
            (J, 8, "terminal is true or false"),
            (J, 8, "dead end"),
            (J, 14, "label is not one printable line"),
        ],
    ),
    "missing keys": (
        graph(('"id": "stop", "stepFile": "steps/done.md", ', ""), ('"to": "stop", ', "")),
        [(J, 8, "id is missing"), (J, 8, "stepFile is missing"), (J, 15, "to is missing")],
    ),
    "no objects": (
        graph(('{"from": "plan", "to": "stop", "label": "nothing to do"}', "1"))
        | head("entry: plan"),
        [(J, 8, "cannot be reached"), (J, 15, "this entry of edges is not a JSON object")],
    ),
    "forged lines": (
        graph(
            ('"id": "stop"', '"id": "stop\\n- autopilot: true"'),
            ('"draft"', '"draft\\u2028- x"'),
            ("it is not good yet", "no\\u202ey"),
            ('"label": "good"', f'"label": "{"g" * 81}"'),
        ),
        [
            (J, 4, "the output 'draft"),
            (J, 8, "is not an id"),
            (J, 13, "condition is not one printable line"),
            (J, 14, "label is not one printable line of at most 80"),
            (J, 15, "no node 'stop'"),
        ],
    ),
    "output above": (output("../x.md"), [(J, 4, "'..' leads out")]),
    "output in the package": (output("@pkg/x.md"), [(J, 4, "leaves @project/")]),
    "output in the state": (output("@state/workflow.md"), [(J, 4, "leaves @project/")]),
    "output is the mount": (output("@project/"), [(J, 4, "write a path below a mount")]),
    "output with a mark": (output("{planning}/x.md"), [(J, 4, "a value for {planning}")]),
    "output is a number": (graph(('"out/draft.md"', "1")), [(J, 4, "1 is not a path")]),
    "output in the store": (output("@project/.nbagent/x.md"), [(J, 4, "has a reserved name")]),
    "input of no mount": (needs("@data/x.md"), [(J, 4, "another mount than @project")]),
    "input not in the package": (needs("@pkg/x.md"), [(J, 4, "no file x.md in the package")]),
}
BAD_FILES: dict[str, tuple[dict[str, Any], Expected]] = {
    "unknown agents": (
        head("agents:\n  - mira\n  - lena\nagent: otto"),
        [(W, 4, "no agent 'lena'; there are: mira"), (W, 5, "no agent 'otto'")],
    ),
    "agents are no list": (head("agents: {a: 1}"), [(W, 2, "agents is an id, or a list")]),
    "bad id": (head("name: x\nid: a b"), [(W, 3, "'a b' is not an id")]),
    "name of two lines": (head('name: "a\\nb"'), [(W, 2, "name is not one printable line")]),
    "name is a number": (head("name: 12"), [(W, 2, "in quotes")]),
    "config": (
        head("config:\n  a: [1]\n  b: 'x'\n  c: \"1\\n2\"\n  'd e': 1"),
        [(W, 3, "'a' is not one"), (W, 5, "'c' is not one"), (W, 6, "'d e' cannot name a value")],
    ),
    "variables are a text": (
        head("variables: x"),
        [(W, 2, "is not a list of 'name: value' pairs")],
    ),
    "aliases": (head("id: &a x\nname: *a"), [(W, 2, "aliases"), (W, 3, "aliases")]),
    "keys twice": (head("id: x\nid: y\nid: z"), [(W, 3, "second time"), (W, 4, "second time")]),
    "open bracket": (
        head("id: x\nagents: [mira, otto\nname: x"),
        [(W, 3, "a quote or bracket has no end")],
    ),
    "broken front matter": (head("id: x\n  y: z"), [(W, 3, "it is not YAML")]),
    "not text": ({W: b"\xff\xfe"}, [(W, None, "UTF-8")]),
    "broken config": ({"config.yaml": "a: 1\na: 2\n"}, [("config.yaml", 2, "second time")]),
    "all of one agent": (
        agent('critical_actions:\n- load: ../../etc/passwd\n- load: @pkg/x.md\n- "a\\x1b[2K"'),
        [(A, 5, "'..' leads out"), (A, 6, "no file x.md"), (A, 7, "control characters")],
    ),
    "agent that records nothing": (agent("tools: [fs.read]"), [(A, 4, "leave out fs.apply_patch")]),
    "two agents of one id": (
        {"agents/other.md": "---\nid: mira\n---\nYou are Mira too.\n"},
        [("agents/other.md", None, "is in agents/mira.md too")],
    ),
    "everything at once": (
        {"steps/plan.md": None}
        | graph(('"id": "stop"', '"id": "done"'))
        | head("entry: begin")
        | agent("tools: [fs.read]\ncritical_actions:\n  - load: @pkg/voice.md"),
        [
            (A, 4, "fs.apply_patch"),
            (A, 6, "no file voice.md"),
            (J, 3, "no file steps/plan.md"),
            (J, 8, "used twice"),
            (J, 15, "no node 'stop'"),
            (W, 2, "no node 'begin'"),
        ],
    ),
}
BAD = BAD_GRAPHS | BAD_FILES


@pytest.mark.parametrize("name", BAD)
def test_a_bad_package_gets_all_its_faults_with_file_and_line(name: str, tmp_path: Path) -> None:
    changes, expected = BAD[name]
    faults = faults_of(put(tmp_path / "bad", GOOD | changes))
    assert [(fault.file, fault.line) for fault in faults] == [it[:2] for it in expected]
    for fault, (_, _, words) in zip(faults, expected, strict=True):
        assert words in fault.text


@pytest.mark.parametrize(
    "changes",
    [
        agent("tools: ['fs.*']"),
        {J: "\ufeff" + GRAPH.replace("\n", "\r\n")},
        {W: "\ufeff" + GOOD[W].replace("\n", "\r\n")},
        head("entry: plan\nvariables: {topic: none}\nstepsCompleted: []"),
        output("{project-root}/out/./draft.md"),
        needs("@state/notes.md"),
    ],
    ids=["tools", "graph with CRLF", "rules with CRLF", "more keys", "marks", "state"],
)
def test_what_is_in_order_has_no_fault(changes: dict[str, Any], tmp_path: Path) -> None:
    package = load_package(put(tmp_path / "good", GOOD | changes))
    assert package.graph.entry == "plan"
    assert package.agent == "mira"
    assert package.graph.nodes["write"].outputs == (("draft", "@project/out/draft.md"),)


def without_places(package: Package) -> Package:
    return dataclasses.replace(package, path=Path(), root=Path())


@pytest.mark.parametrize("top", ["", "it/"], ids=["flat", "one top folder"])
def test_a_zip_is_the_same_package_as_its_folder(top: str, tmp_path: Path) -> None:
    files = {name: text for name, text in GOOD.items() if name != W}
    files |= {W: "Rules.\n", ".hidden": "x", "assets/picture.png": b"\x89PNG\r\n\x00"}
    folder = load_package(put(tmp_path / "it", files))
    noise = {f"{top}steps/plan.md~": "x", f"{top}.ipynb_checkpoints/x": "x"}
    noise |= {f"{top}__pycache__/x.pyc": "x", "__MACOSX/._it": "x", f"{top}.DS_Store": "x"}
    file = zipped(tmp_path / "it.bmad", {f"{top}{name}": it for name, it in files.items()} | noise)
    packed = load_package(file, cache=tmp_path / "cache")
    assert without_places(packed) == without_places(folder)
    assert packed.id == "it"
    assert packed.path == file
    assert packed.root.is_relative_to(tmp_path / "cache")
    assert (packed.root / "assets/picture.png").read_bytes() == b"\x89PNG\r\n\x00"
    assert not (packed.root / "__pycache__").exists()


def test_a_zip_is_unpacked_once_and_again_where_the_cache_was_changed(tmp_path: Path) -> None:
    file, cache = zipped(tmp_path / "it.zip", GOOD), tmp_path / "cache"
    first = load_package(file, cache=cache)
    before = first.root.stat().st_ino
    assert load_package(file, cache=cache) == first
    assert first.root.stat().st_ino == before
    for change in ("text", "more", "link", "gone"):
        plan = first.root / "steps/plan.md"
        if change == "text":
            plan.write_text("Plan something else.\n")
        elif change == "more":
            (first.root / "agents/other.md").write_text("---\nid: other\n---\nOther.\n")
        else:
            plan.unlink()
        if change == "link":
            plan.symlink_to(tmp_path)
        assert load_package(file, cache=cache) == first
        assert plan.read_text() == "Plan.\n"
        assert not (first.root / "agents/other.md").exists()
        assert [path.name for path in cache.iterdir()] == [first.root.name]


def entry(name: str, mode: int = 0, **fields: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for key, value in fields.items():
        setattr(info, key, value)
    return info


BAD_ENTRIES: dict[str, tuple[list[zipfile.ZipInfo], list[str]]] = {
    "out of it": (
        [entry("../x"), entry("a/../../x"), entry("/etc/x"), entry("C:/x"), entry("a\\..\\x")],
        ["'..' leads out"] * 2 + ["absolute"] + ["mean something on other systems"] * 2,
    ),
    "no files": (
        [entry("l", stat.S_IFLNK | 0o777), entry("d", stat.S_IFCHR), entry("f", stat.S_IFIFO)],
        ["a link or a device"] * 3,
    ),
    "one name twice": (
        [entry("WORKFLOW.md"), entry("x"), entry("x"), entry("steps"), entry("STEPS/y.md")],
        ["capitals aside"] * 4,
    ),
    "of two spellings": ([entry("caf\u00e9.md"), entry("cafe\u0301.md")], ["capitals aside"]),
    "control characters": ([entry("a\nb"), entry("a\u202eb")], ["invisible character"] * 2),
    "device names": ([entry("aux.md"), entry("x./y")], ["is a device", "ends in a dot"]),
    "packed otherwise": ([entry("x", compress_type=zipfile.ZIP_BZIP2)], ["with deflate"]),
    "no name": ([entry("./")], ["no file and no folder"]),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_entries_of_a_zip_that_could_do_harm_are_all_named(name: str, tmp_path: Path) -> None:
    entries, words = BAD_ENTRIES[name]
    file = zipped(tmp_path / "bad.zip", GOOD)
    with zipfile.ZipFile(file, "a") as archive:
        for one in entries:
            archive.writestr(one, "x", compress_type=one.compress_type)
    faults = faults_of(file, tmp_path / "cache")
    assert len(faults) == len(words)
    for fault, word in zip(faults, words, strict=True):
        assert word in fault.text
    assert not (tmp_path / "cache").exists()


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    file = zipped(tmp_path / "bad.zip", GOOD)
    data = bytearray(file.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    file.write_bytes(data)
    assert "encrypted" in faults_of(file, tmp_path / "cache")[0].text


def zeros(file: Path, size: int, claimed: int | None = None) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("zeros.bin", "w", force_zip64=True) as entry:
            for _ in range(size >> 20):
                entry.write(bytes(1 << 20))
        if claimed is not None:
            archive.infolist()[0].file_size = claimed
        for name, text in GOOD.items():
            archive.writestr(name, text)
    return file


@pytest.mark.parametrize("claimed", [None, 10], ids=["1 GB", "1 GB that says 10 bytes"])
def test_a_zip_of_zeros_is_refused_in_moments(claimed: int | None, tmp_path: Path) -> None:
    file = zeros(tmp_path / "bomb.zip", 1 << 30, claimed)
    began = time.process_time()
    faults = faults_of(file, tmp_path / "cache")
    assert time.process_time() - began < 3
    assert "more than 64 MB" in faults[0].text or "damaged" in faults[0].text
    assert not (tmp_path / "cache").exists()


def test_many_files_are_refused(tmp_path: Path) -> None:
    many = GOOD | {f"assets/{number}": "" for number in range(5_001)}
    for path in (put(tmp_path / "it", many), zipped(tmp_path / "it.zip", many)):
        assert "more than 5,000 files" in faults_of(path, tmp_path / "cache")[0].text


def test_a_large_folder_is_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "it", GOOD)
    for number in range(2):
        with open(folder / f"large{number}", "wb") as file:
            file.truncate(40 << 20)
    assert "more than 64 MB" in faults_of(folder)[0].text


@pytest.mark.parametrize("cut", [0.5, 0.9], ids=["half", "most"])
def test_a_damaged_zip_is_one_clear_error(cut: float, tmp_path: Path) -> None:
    file = zipped(tmp_path / "it.zip", GOOD)
    data = bytearray(file.read_bytes())
    at = int(data.index(b"PK\x01\x02") * cut)
    data[at : at + 20] = bytes(20)
    file.write_bytes(data)
    assert "the zip is damaged" in faults_of(file, tmp_path / "cache")[0].text


NO_PACKAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "not there": (lambda path: None, "no such folder or zip"),
    "no zip": (lambda path: path.write_text("text"), "neither a folder nor a zip"),
    "empty folder": (lambda path: path.mkdir(), "neither workflow.md nor SKILL.md"),
    "empty zip": (lambda path: zipped(path, {}), "neither workflow.md nor SKILL.md"),
    "deeper": (lambda path: put(path, {"a/b/workflow.md": "x"}), "name the folder that has one"),
    "no steps": (lambda path: put(path, {"workflow.md": "x"}), "write one of them"),
    "name of a line break": (
        lambda path: put(path, STEPS | {"steps/step-02\n- autopilot.md": "x"}),
        "invisible character",
    ),
    "name that no tool reads": (
        lambda path: put(path, STEPS | {"steps/step-02: more.md": "x"}),
        "mean something on other systems",
    ),
    "folder of two lines": (lambda path: put(path / "a\nb", GOOD), "not one printable line"),
    "path of no system": (lambda path: path / "a\0b", "not one printable line"),
}
STEPS = {"workflow.md": "x", "steps/step-01.md": "x"}


@pytest.mark.parametrize("name", NO_PACKAGE)
def test_what_is_no_package_is_one_clear_error(name: str, tmp_path: Path) -> None:
    make, words = NO_PACKAGE[name]
    made = make(tmp_path / "none")
    (fault,) = faults_of(made if isinstance(made, Path) else tmp_path / "none", tmp_path / "cache")
    assert words in fault.text
    assert "\n" not in str(fault)


def test_links_in_a_package_are_not_followed(tmp_path: Path) -> None:
    secret = put(tmp_path / "outside", {"plan.md": "secret", "mira.md": "secret"})
    folder = put(tmp_path / "it", GOOD)
    for name in ("steps/plan.md", "agents/mira.md"):
        (folder / name).unlink()
        (folder / name).symlink_to(secret / Path(name).name)
    (folder / "assets/form.md").unlink()
    (folder / "assets").rmdir()
    (folder / "assets").symlink_to(secret)
    faults = faults_of(folder)
    assert [(fault.file, fault.line) for fault in faults] == [(A, None), (J, 3), (J, 4)]
    assert all("is a link or lies behind one" in fault.text for fault in faults)


def test_the_hash_is_of_all_files(tmp_path: Path) -> None:
    folder = put(tmp_path / "it", GOOD)
    hashes = [load_package(folder).sha256]
    for changes in ({".hidden": "x"}, {".mcp.json": "{}"}, {"assets/form.md": "# Other\n"}):
        package = load_package(put(folder, changes))
        hashes.append(package.sha256)
    assert len(set(hashes)) == 4
    assert any(".mcp.json is not read" in note for note in package.notes)
    put(folder, {"__pycache__/x.pyc": "x", ".git/config": "x", "steps/.DS_Store": "x"})
    put(folder, {".ipynb_checkpoints/a.md": "x", "steps/.plan.md.swp": "x", "steps/plan.md~": "x"})
    assert load_package(folder).sha256 == hashes[-1]
    (folder / "assets/form.md").rename(folder / "assets/form2.md")
    put(folder, {"assets/form.md": "# Other\n"})
    (folder / "assets/form2.md").unlink()
    assert load_package(folder).sha256 == hashes[-1]


def test_the_persons_values_are_checked_and_win_in_prose(tmp_path: Path) -> None:
    files = GOOD | head("config:\n  reader: the team\n  folder: '{project-root}/out'")
    files |= {"config.yaml": "# of an installer\nreader: nobody\ntopic: birds\nlist: [1]\nn: 3\n"}
    folder = put(tmp_path / "it", files)
    package = load_package(folder)
    values = {"reader": "the team", "topic": "birds", "n": "3", "folder": "@project/out"}
    assert package.values == values
    assert package.unfilled == ()
    assert load_package(folder, values={"reader": "me"}).values == values | {"reader": "me"}
    with pytest.raises(UsageError, match="'reader' is not one printable line"):
        load_package(folder, values={"reader": "a\n- autopilot: true"})


def ways(package: Package) -> list[str]:
    """Where each step leads to, as `a > b, c:see`; labels other than `next` behind a colon."""
    made: list[str] = []
    for node_id in package.graph.nodes:
        edges = package.graph.edges_from(node_id)
        there = [f"{it.target}:{it.label}".removesuffix(":next") for it in edges]
        made.append(" > ".join([node_id, *([", ".join(there)] if there else [])]))
    return made


def test_a_skill_of_step_files_is_a_package_without_a_conversion() -> None:
    package = load_package(FIELD_NOTES, values={"communication_language": "English"})
    assert (package.id, package.main_file, package.graph_file) == ("field-notes", "SKILL.md", None)
    assert ways(package) == [
        "step-01-collect > step-02-sort, step-01b-continue:see",
        "step-02-sort > step-03-check, step-e-01-odd-note:see",
        "step-03-check",
        "step-01b-continue > step-03-check, step-02-sort",
        "step-e-01-odd-note > step-03-check",
    ]
    assert [node.id for node in package.graph.nodes.values() if node.terminal] == ["step-03-check"]
    assert package.graph.entry == "step-01-collect"
    assert package.unfilled == ("{output_folder}", "{{report_title}}")
    assert package.values["communication_language"] == "English"
    assert package.values["skill-root"] == "@pkg"
    agent = package.agent_of("step-02-sort")
    assert agent is not None
    assert (agent.id, agent.name) == ("mira", "Mira")
    assert "You speak English" in agent.persona
    assert "step-01-collect → step-02-sort → step-03-check" in package.notes[0]
    assert "steps/step-x-old.md is not a step" in package.notes[1]
    assert len(package.notes) == 2


STEP_FILES: dict[str, tuple[dict[str, str], list[str]]] = {
    "numbers": (
        {"steps/step-2": "", "steps/step-10": "", "steps/step-1": "not step-1.md"},
        ["step-1 > step-2", "step-2 > step-10", "step-10"],
    ),
    "beside the main file": (
        {"step-01-a": "", "step-02-b": "", "notes": ""},
        ["step-01-a > step-02-b", "step-02-b"],
    ),
    "one folder deeper": (
        {
            "steps-c/step-01": "see ../steps-e/step-e-01.md",
            "steps-c/step-02": "",
            "steps-e/step-e-01": "",
            "steps-e/step-01": "",
        },
        ["step-01 > step-02, step-e-01:see", "step-02", "step-e-01 > step-02"],
    ),
    "two names": (
        {"steps/step-01": "`steps-b/step-01.md`", "steps/step-02": "", "steps-b/step-01": ""},
        ["step-01 > step-02, steps-b.step-01:see", "step-02", "steps-b.step-01 > step-02"],
    ),
    "behind each other": (
        {
            "steps/step-01": "[b](./step-01b.md)",
            "steps/step-01b": "{project-root}/x/step-01c.md",
            "steps/step-01c": "step-01b.md",
            "steps/step-02": "step-z.md",
            "steps/step-z": "",
        },
        [
            *("step-01 > step-02, step-01b:see", "step-02"),
            *("step-01b > step-02, step-01c:see", "step-01c > step-02, step-01b:see"),
        ],
    ),
    "on two steps": (
        {
            "steps/step-01": "step-x.md",
            "steps/step-02": "`step-x.md`",
            "steps/step-03": "back to step-x.md",
            "steps/step-x": "",
        },
        [
            *("step-01 > step-02, step-x:see", "step-02 > step-03, step-x:see"),
            *("step-03", "step-x > step-02, step-03"),
        ],
    ),
    # A search that goes back and forth would take hours here.
    "one long word": ({"steps/step-01": "a" * 200_000}, ["step-01"]),
    "a name to be mended": (
        {"steps/step-01 begin (now)": "", "steps/step-02-größe": ""},
        ["step-01-begin-now > step-02-gr-e", "step-02-gr-e"],
    ),
}


@pytest.mark.parametrize("name", STEP_FILES)
def test_a_graph_is_made_from_the_numbers_and_links_of_steps(name: str, tmp_path: Path) -> None:
    files, expected = STEP_FILES[name]
    steps = {f"{name}.md": text for name, text in files.items()}
    package = load_package(put(tmp_path / "it", {"workflow.md": "Rules.\n", **steps}))
    assert ways(package) == expected
    assert "made from the numbers of the steps" in package.notes[0]
