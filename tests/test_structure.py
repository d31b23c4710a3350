"""Layers, circles, imports by a string, homes of packages, names of modules, words of names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import nbagent

ROOT = Path(nbagent.__file__).parent

# From top to bottom; rooms of one line do not know each other.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"notebook"},
    {"testing"},
    {"comparison", "charts", "chat_client"},
    {"frames", "agent"},
    {"lab"},
    {"run"},
    {"run_tree"},
    {"session"},
    {"export"},
    {"providers", "workflow", "view"},
    {"store", "tools"},
    {"engine", "runtime", "files", "sandbox", "settings", "shown"},
    {"contracts"},
]
# The package itself: its stub names where public names are, its `__init__` loads them late.
TOP = ""
# A package and the one place (a module or a room) that imports it.
HOMES = {
    # The mcp package takes a client of it, for headers and proxies.
    "httpx2": ("tools.mcp",),
    "httpcore2": ("providers.transport",),
    "pandas": ("store.dataframes",),
    "narwhals": ("shown.foreign_frames",),
    "numpy": ("store.dataframes", "lab.agreement", "lab.intervals"),
    "distributed": ("lab.remote",),
    "cloudpickle": ("lab.remote",),
    "sqlite3": ("store.connections",),
    "matplotlib": ("export.figures",),
    "opentelemetry": ("export.otel",),
    "IPython": ("notebook",),
    "ipykernel": ("notebook",),
    "ipywidgets": ("notebook",),
    "anywidget": ("notebook",),
    "sidecar": ("notebook.panel_sidecar",),
    "nest_asyncio2": ("notebook",),
    "griffe": ("tools.functions",),
    "genai_prices": ("providers.prices",),
    "xllamacpp": ("providers.local",),
    "huggingface_hub": ("providers.local",),
    "markdown_it": ("view",),
    "pygments": ("view",),
    "rich": ("view.terminal",),
    "PIL": ("shown.images",),
    "ruamel": ("files.frontmatter",),
    "pathspec": ("files.walking",),
    "re2": ("files.searching",),
    "mcp": ("tools.mcp",),
    "mcp_types": ("tools.mcp",),
    "anyio": ("tools.mcp",),
    "lazy_loader": (TOP,),
}
FORBIDDEN = {"httpx", "nest_asyncio", "requests"}
# Modules of one name: one idea in two rooms, and which.
SAME_NAME = {
    "approval": "a question about a call: its values in contracts, asking it in session",
    "batch": "a batch: the handle in lab, its picture in view",
    "client": "a ChatClient: of servers, and of recorded answers",
    "dry_run": "a dry run: made in session, drawn in view",
    "frames": "DataFrames: of the store's history, and of a batch",
    "frontend": "the frontend of a process: the port in session, Jupyter's in notebook",
    "graph": "the graph of a workflow: its values in workflow, its picture in view",
    "host": "a tool host: of functions, and of an MCP server",
    "images": "pictures: from Python values in shown, as nodes in view",
    "interrupt": "KeyboardInterrupt: in threads in runtime, as the end of a cell in notebook",
    "limits": "limits of a run: their values in contracts, their check in engine",
    "messages": "messages: of a conversation in contracts, of a page in notebook",
    "plan": "what will happen: of a run for the engine, how session makes it, of a batch",
    "review": "a person labels answers: the review in lab, its picture in view",
    "run_tree": "the tree of a session's runs: the handle, and its picture",
    "tool_calls": "the calls of one answer: read in providers, run in engine",
    "tool_names": "names of tools: which are legal, and their form on the wire",
}
MAX_WEAK_NAMES = 20
WEAK_NAMES = {
    *("found", "given", "said", "told", "heard", "held", "kept", "asked", "meant", "seen"),
    *("it", "one", "what", "gone", "words", "place"),
}
MAX_RELATIVE_DOCSTRINGS = 20
RELATIVE = re.compile(r"(What|Whether|Who|That|The same|One that|So many|So much)\b")


@dataclass(frozen=True)
class Import:
    """One imported module or name."""

    target: str
    """Dotted and absolute; of nbagent always a module."""
    kind: str
    """`top`, `late`, `typing` or `string`."""
    line: int


@cache
def modules() -> dict[str, Path]:
    """The files of the package by dotted name relative to it; `` is the package itself."""
    found: dict[str, Path] = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text("utf-8"))


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _targets(node: ast.AST) -> Iterator[str]:
    """The modules that one statement or call imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        base = node.module or ""
        for alias in node.names:
            inner = f"{base}.{alias.name}".removeprefix("nbagent.")
            yield f"nbagent.{inner}" if base.startswith("nbagent") and inner in modules() else base


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Every import of a file, wherever it stands: also late, for typing, and by a string."""
    tree = tree_of(module)
    typing = {id(n) for block in ast.walk(tree) if _is_typing(block) for n in ast.walk(block)}
    top = {id(node) for node in tree.body}
    result: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            kind = "typing" if id(node) in typing else "top" if id(node) in top else "late"
            result += [Import(target, kind, node.lineno) for target in _targets(node)]
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__") and node.args:
                argument = node.args[0]
                name = argument.value if isinstance(argument, ast.Constant) else "?"
                result.append(Import(str(name), "string", node.lineno))
    return tuple(result)


def ours(module: str) -> Iterator[Import]:
    """Imports of nbagent in a module, by names relative to the package."""
    for one in imports_of(module):
        if one.target == "nbagent" or one.target.startswith("nbagent."):
            yield Import(one.target[len("nbagent.") :], one.kind, one.line)


def layer_of(room: str) -> int:
    for number, layer in enumerate(LAYERS):
        if room in layer:
            return number
    raise AssertionError(f"room {room!r} is not on the page (DESIGN 3)")


def test_imports_of_every_kind_go_down_the_page_only() -> None:
    for module in modules():
        room = module.split(".")[0]
        for one in ours(module):
            other = one.target.split(".")[0]
            if room in (TOP, other):
                continue
            where = f"{module}:{one.line} ({one.kind}) imports {one.target or 'nbagent'}"
            assert other != TOP, f"{where}: the package itself is above all; import the module"
            assert layer_of(other) > layer_of(room), f"{where}, which is not below it"


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {m: {i.target for i in ours(m) if i.target in modules()} - {m} for m in modules()}
    # Files that only files of a circle are left with: take away what imports nothing, and again.
    while free := [m for m, targets in graph.items() if not targets]:
        for module in free:
            del graph[module]
        for targets in graph.values():
            targets.difference_update(free)
    # What is left imports a circle or is one; those that nothing left imports are none.
    while heads := set(graph) - set[str]().union(*graph.values()):
        for module in heads:
            del graph[module]
    assert not graph, f"a circle among {sorted(graph)}"


def test_nothing_is_imported_by_a_module_name_in_a_string() -> None:
    # The one exception names another package's module, which only its caller knows.
    allowed = {("providers.local", "?")}
    by_string = {
        (m, one.target) for m in modules() for one in imports_of(m) if one.kind == "string"
    }
    assert by_string <= allowed


def test_strings_that_name_a_module_of_nbagent_name_one_that_exists() -> None:
    groups = {"nbagent.frontends", "nbagent.providers", "nbagent.tools", "nbagent.agent_matcher"}
    for module in modules():
        for node in ast.walk(tree_of(module)):
            if not isinstance(node, ast.Constant) or not isinstance(text := node.value, str):
                continue
            if re.fullmatch(r"nbagent(\.[a-z_]+){2,}", text):
                name = text.removeprefix("nbagent.")
                assert name in modules() or text in groups, f"{module}:{node.lineno} says {text!r}"


def test_only_the_module_that_opens_stores_imports_their_class_in_session_and_workflow() -> None:
    rooms = [m for m in modules() if m.split(".")[0] in ("engine", "session", "workflow")]
    importing = {m for m in rooms for one in ours(m) if one.target == "store.writer"}
    assert importing == {"session.stores"}, "the others use contracts.ports.RunStore"


def test_third_party_packages_live_in_one_place_each() -> None:
    for module in modules():
        for one in imports_of(module):
            package = one.target.split(".")[0]
            assert package not in FORBIDDEN, f"{module} imports {package}"
            if package in HOMES and one.kind != "typing":
                homes = HOMES[package]
                at_home = any(module == home or module.startswith(f"{home}.") for home in homes)
                assert at_home, f"{module}:{one.line} imports {package}"


def test_modules_of_one_name_are_one_idea_and_listed_with_it() -> None:
    stems = Counter(m.split(".")[-1] for m, path in modules().items() if path.stem != "__init__")
    twice = {stem for stem, number in stems.items() if number > 1}
    assert twice == set(SAME_NAME)


def test_no_module_bears_the_name_of_a_public_function() -> None:
    files = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not files & set(nbagent.__all__)


def test_every_public_name_resolves_and_only_those_are_offered() -> None:
    for name in nbagent.__all__:
        assert getattr(nbagent, name) is not None
    assert set(dir(nbagent)) == {*nbagent.__all__, "__version__", "testing"}
    stub = ast.parse(Path(nbagent.__file__ or "").with_suffix(".pyi").read_text("utf-8"))
    declared = {
        alias.asname
        for node in stub.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert set(nbagent.__all__) == declared


def test_every_module_says_what_it_owns() -> None:
    for module in modules():
        assert ast.get_docstring(tree_of(module)), f"{module} has no docstring"


def test_names_say_what_a_thing_is() -> None:
    weak = Counter[str]()
    for module in modules():
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.args, *node.args.kwonlyargs]
                weak.update(a.arg for a in arguments if a.arg in WEAK_NAMES)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                weak.update({node.id} & WEAK_NAMES)
    assert weak.total() <= MAX_WEAK_NAMES, weak


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    relative = [
        f"{module}: {text.splitlines()[0]}"
        for module in modules()
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and RELATIVE.match(text := ast.get_docstring(node) or "")
    ]
    assert len(relative) <= MAX_RELATIVE_DOCSTRINGS, relative


@pytest.mark.parametrize("command", ["import nbagent", "import nbagent; dir(nbagent)"])
def test_importing_nbagent_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; {command}; heavy = {{'pydantic', 'pandas', 'numpy', 'httpx2', 'IPython', "
        "'ipywidgets', 'anywidget', 'orjson', 'asyncio', 'sqlite3', 'griffe'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
