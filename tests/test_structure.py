"""The layer law (DESIGN 3), the place of each third-party package, and the collision of names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbagent

ROOT = Path(nbagent.__file__).parent

# From top to bottom; rooms of one line do not know each other.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"notebook"},
    {"testing"},
    {"comparison", "charts"},
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
# What a room may use beside the layers below it.
SIDEWAYS: dict[str, set[str]] = {}
# The one import up the page, made when a run first needs a place to be shown.
UPWARD = {("session.frontend", "notebook.frontend")}
# A package and the one place (a module or a room) that imports it.
HOMES = {
    # The mcp package takes a client of it, for headers and proxies.
    "httpx2": ("tools.mcp",),
    "httpcore2": ("providers.transport.http", "providers.transport.streams"),
    "pandas": ("store.dataframes",),
    "numpy": ("store.dataframes", "lab.statistics"),
    "distributed": ("lab.remote",),
    "cloudpickle": ("lab.remote_task",),
    "sqlite3": ("store.database",),
    "matplotlib": ("export.figures",),
    "opentelemetry": ("export.otel",),
    "IPython": ("notebook",),
    "ipykernel": ("notebook",),
    "ipywidgets": ("notebook",),
    "anywidget": ("notebook",),
    "nest_asyncio2": ("notebook",),
    "griffe": ("tools",),
    "genai_prices": ("providers.prices",),
    "xllamacpp": ("providers.local",),
    "huggingface_hub": ("providers.local",),
    "markdown_it": ("view",),
    "pygments": ("view",),
    "ruamel": ("files.frontmatter",),
    "pathspec": ("files.walking",),
    "re2": ("files.searching",),
    "mcp": ("tools.mcp",),
    "mcp_types": ("tools.mcp",),
    "anyio": ("tools.mcp",),
}
FORBIDDEN = {"httpx", "nest_asyncio", "requests"}


def modules() -> list[str]:
    """`contracts.chat`, `agent`, … relative to the package."""
    names: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name]


def path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> Iterator[str]:
    """Every imported name, `nbagent.` ones and others, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path_of(module).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            base = node.module or ""
            yield base
            for alias in node.names:
                below = ROOT.joinpath(*base.split(".")[1:], alias.name)
                if base.split(".")[0] == "nbagent" and (
                    below.is_dir() or below.with_suffix(".py").exists()
                ):
                    yield f"{base}.{alias.name}"


def layer_of(room: str) -> int:
    for number, layer in enumerate(LAYERS):
        if room in layer:
            return number
    raise AssertionError(f"room {room!r} is not on the page (DESIGN 3)")


def ours(module: str) -> set[str]:
    """What the module imports of nbagent, relative to the package."""
    names = {name for name in imports_of(module) if name.startswith("nbagent.")}
    return {name.removeprefix("nbagent.") for name in names}


def test_imports_go_down_the_page_only() -> None:
    for module, target in ((it, target) for it in modules() for target in ours(it)):
        room, other = module.split(".")[0], target.split(".")[0]
        if other == room or (not (ROOT / other).is_dir() and not (ROOT / f"{other}.py").exists()):
            continue
        allowed = layer_of(other) > layer_of(room) or other in SIDEWAYS.get(room, set())
        allowed = allowed or (module, ".".join(target.split(".")[:2])) in UPWARD
        assert allowed, f"{module} imports {target}, which is not below it"


def test_third_party_packages_live_in_one_place_each() -> None:
    for module, name in ((it, name) for it in modules() for name in imports_of(it)):
        package = name.split(".")[0]
        assert package not in FORBIDDEN, f"{module} imports {package}"
        if package in HOMES:
            homes = HOMES[package]
            at_home = any(module == home or module.startswith(f"{home}.") for home in homes)
            typing_only = package in ("pandas", "matplotlib")
            typing_only = typing_only and "TYPE_CHECKING" in path_of(module).read_text()
            assert at_home or typing_only, f"{module} imports {package}"


def test_no_module_bears_the_name_of_a_public_function() -> None:
    files = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not files & set(nbagent.__all__)


def test_every_public_name_resolves() -> None:
    for name in nbagent.__all__:
        assert getattr(nbagent, name) is not None


def test_every_module_says_what_it_owns() -> None:
    for module in modules():
        tree = ast.parse(path_of(module).read_text("utf-8"))
        assert ast.get_docstring(tree), f"{module} has no docstring"


def test_importing_nbagent_imports_nothing_heavy() -> None:
    code = (
        "import sys, nbagent; heavy = {'pydantic', 'pandas', 'numpy', 'httpx2', 'IPython', "
        "'ipywidgets', 'anywidget', 'orjson', 'asyncio', 'sqlite3', 'griffe'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_files_stay_one_room_each() -> None:
    long = {m: n for m in modules() if (n := len(path_of(m).read_text().splitlines())) > 500}
    assert not long
