"""MCP servers that this process knows: `nbagent.mcp(…)`, `mcpServers` files, approvals.

Owns the files, `${VARIABLE}` in them, and trust: a file inside the project is a stranger's, so none
of its variables is filled and none of its servers is started before the person allows that entry:
for this process by an answer to the question before its start, or in the folder's trust entry. Both
hold for exactly the text that was shown, with the bytes of the project's files that the entry names
(not of files that these import).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.canonical import json_object, sha256_hex, sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import is_storable_json
from nbagent.contracts.nearest import name_list, nearest_name, nearest_or_all
from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.secrets import register_value
from nbagent.settings.project_items import current_state, readable
from nbagent.settings.sources import project_folder
from nbagent.settings.trust import TrustItem, config_folder
from nbagent.tools.mcp.server import START_TIMEOUT_S, TIMEOUT_S, McpServer

_MAX_WORDS = 50
_ENDS = (
    *("", ".py", ".js", ".mjs", ".cjs", ".ts", ".sh"),
    *("/__main__.py", "/__init__.py", "/index.js", "/package.json"),
)
"""Ends that programs add to a name: a module, a script without its end, a folder."""
PROJECT_FILE = ".mcp.json"
_MAX_FILE_BYTES = 1_000_000
# The forms of Claude Code (`${NAME}`, `${NAME:-default}`) and VS Code (`${env:NAME}`).
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
# Programs that write such files spell streamable HTTP in three ways.
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
_servers: dict[str, McpServer] = {}
"""Servers from `nbagent.mcp(…)`, by name."""
_allowed_identities: set[str] = set()
"""Identities of project servers that the person allowed; valid while this process lives."""
_refused_servers: dict[str, ProjectServer] = {}
"""Servers of project files other than `.mcp.json` that code named before they were allowed, by
the names of their items: nothing else knows these files."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectServer:
    """A server in a project's file that the person has not allowed yet."""

    name: str
    path: Path
    entry: Any
    """Entry as written in the file, with its variables not filled."""
    item: TrustItem
    """Everything that decides which program would be started, as a person reads it."""

    @property
    def identity(self) -> str:
        """Hash of everything that decides which program would be started."""
        return sha_of([self.name, os.path.realpath(self.path), self.item.text])

    def allow(self) -> McpServer:
        """Trust this entry while this process lives; raise UsageError if it is not valid."""
        if _item_of(self.name, self.path, self.entry) != self.item:
            raise UsageError(
                f"a file that the MCP server {self.name!r} uses has changed since you were asked; "
                "start it again"
            )
        _allowed_identities.add(self.identity)
        return self.server()

    def server(self) -> McpServer:
        """Return the server of this entry, to run in the folder of its file.

        Raises UsageError if the entry is not valid.
        """
        # Its folder, not that of the process, which may change between a question and the start.
        return _server_from_entry(self.path, self.name, self.entry, cwd=self.path.parent)

    def refreshed(self) -> ProjectServer:
        """The same entry, with the files that it names as they are now."""
        return _project_server(self.name, self.path, self.entry)

    @property
    def is_allowed(self) -> bool:
        """True if the person allowed exactly this, in this process or in the folder's entry."""
        if self.identity in _allowed_identities:
            return True
        return current_state(self.item).status == "allowed"


def mcp(
    name: str,
    *,
    command: str | Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
) -> McpServer:
    """Register an MCP server under a name: `--tools mcp:NAME`, or `tools=[nbagent.mcp(…)]`.

    Nothing is started before a run uses the server. With a name alone, return the server of that
    name from this process, from `~/.config/nbagent/mcp.json` (or `$XDG_CONFIG_HOME/nbagent`), or
    from `.mcp.json` here. An entry of a file inside the project is returned only if you allowed
    exactly this entry (`%agent trust`): the file changes with the project. `--tools mcp:NAME` asks
    before it starts.

    Args:
        name: prefix of its tools: `name__tool`.
        command: program and arguments of a server that speaks over stdin and stdout.
        env: environment variables for the server, in addition to PATH, HOME and the like; put
            keys here.
        cwd: working directory of the server.
        url: address of a server that speaks streamable HTTP; https, or http on this machine.
        headers: sent with each request to `url`; put keys here.
        file: a JSON file with `{"mcpServers": {name: {command, args, env, url, headers}}}`.
        timeout: seconds without an answer or a progress message until a call is cancelled.
        start_timeout: seconds until a start is cancelled.

    Raises:
        UsageError: the arguments or the file are not valid, or the entry is a project's that you
            have not allowed; the message says where.
    """
    if file is not None:
        if command is not None or url is not None:
            raise UsageError("give nbagent.mcp only one of file=…, command=… and url=…")
        path = Path(file).expanduser()
        entries = _read_entries(path)
        if name not in entries:
            hint = nearest_or_all(name, entries, "it has:")
            raise UsageError(f"{path} has no MCP server {name!r}{hint}")
        server = _allowed(_find_in(path, name, entries[name], _is_in_project(path)))
    elif command is None and url is None:
        server = _allowed(find_server(name, Path.cwd()))
    else:
        server = McpServer(
            name,
            command=command,
            env=env,
            cwd=cwd,
            url=url,
            headers=headers,
            timeout_s=timeout,
            start_timeout_s=start_timeout,
        )
    _servers[name] = server
    return server


def known_servers() -> Mapping[str, McpServer]:
    """Servers made with `nbagent.mcp(…)` in this process, by name."""
    return dict(_servers)


def configured_servers() -> list[str]:
    """Names of trusted servers: made in this process, or in the person's own file."""
    in_files = [name for path in _user_files() if path.is_file() for name in _read_entries(path)]
    return list(dict.fromkeys([*_servers, *in_files]))


def find_server(name: str, project: Path) -> McpServer | ProjectServer:
    """Find the server of a name; raise UsageError if there is none.

    The entry of a project that is not allowed yet is returned as a `ProjectServer`.
    """
    if name in _servers:
        return _servers[name]
    names = list(_servers)
    for path, entries in _config_files(project):
        if name in entries:
            return _find_in(path, name, entries[name], path.name == PROJECT_FILE)
        names += entries
    near = nearest_name(name, names)
    hint = f". Did you mean {near!r}?" if near else ""
    raise UsageError(
        f"there is no MCP server {name!r}, there are: "
        f"{name_list(dict.fromkeys(names)) or 'none'}; "
        f"make one with nbagent.mcp({name!r}, command=[…]) or write it into {PROJECT_FILE}{hint}"
    )


def project_servers(project: Path) -> list[ProjectServer]:
    """List the servers of a project's file, allowed or not, and those of its other named files."""
    path = project / PROJECT_FILE
    entries = _read_entries(path) if path.is_file() else {}
    servers = [_project_server(name, path, entry) for name, entry in entries.items()]
    return [*servers, *_refused_servers.values()]


def _find_in(path: Path, name: str, entry: Any, is_project: bool) -> McpServer | ProjectServer:
    """The server of an entry; a `ProjectServer` if it is a project's and not allowed."""
    if not is_project:
        return _server_from_entry(path, name, entry)
    server = _project_server(name, path, entry)
    return server.server() if server.is_allowed else server


def _allowed(server: McpServer | ProjectServer) -> McpServer:
    """The server, for code that names it. Raises UsageError if it is not allowed yet."""
    if isinstance(server, McpServer):
        return server
    advice = f"use --tools mcp:{server.name}, which asks before it starts; or "
    if server.path.name != PROJECT_FILE:
        _refused_servers[server.item.name] = server
        advice = ""
    raise UsageError(
        f"you have not allowed the MCP server {server.name!r} as {server.path.name} of this "
        f"project describes it now; {advice}%agent trust shows and allows it"
    )


def _is_in_project(path: Path) -> bool:
    real = Path(os.path.realpath(path))
    # The person's own files stay their own in a kernel that was started in the home folder.
    own = [Path(os.path.realpath(file)) for file in _user_files()]
    return real not in own and real.is_relative_to(os.path.realpath(project_folder()))


def _project_server(name: str, path: Path, entry: Any) -> ProjectServer:
    return ProjectServer(name, path, entry, _item_of(name, path, entry))


def _item_of(name: str, path: Path, entry: Any) -> TrustItem:
    """Write an entry as an item: its JSON, and the hash of each file of the project in it."""
    lines = [readable(_without_keys(entry))]
    lines += [f"{file}: sha256 {sha}" for file, sha in _named_files(path.parent, entry)]
    if (json_object(entry) or {}).get("command"):
        lines.append("Other files that the program loads from this folder are not compared.")
    # A name may have line ends, and would look like another question.
    shown = readable(name).replace("\n", "\\n")
    return TrustItem(f"{path.name}: {shown}", "\n".join(lines), path.parent)


def _without_keys(value: Any, *, is_key: bool = False) -> Any:
    """The value with a hash instead of each text that may be a key: a header, a secret's name."""
    if isinstance(value, dict):
        return {
            name: _without_keys(item, is_key=is_key or name == "headers" or is_secret_name(name))
            for name, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_without_keys(item, is_key=is_key) for item in cast("list[Any]", value)]
    if is_key and isinstance(value, str) and not _VARIABLE.search(value):
        return f"(hidden, sha256 {sha256_hex(value)})"
    return value


def _named_files(folder: Path, entry: Any) -> Iterator[tuple[str, str]]:
    """Yield the project's files that the command of an entry names, with the hashes of their bytes.

    Otherwise an allowed `python server.py` would start another program after the next pull.
    """
    fields = json_object(entry) or {}
    base = Path(os.path.realpath(folder))
    env = json_object(fields.get("env")) or {}
    texts = [fields.get("command", ""), *_list_of(fields.get("args")), *env.values()]
    names = [*dict.fromkeys(word for text in texts for word in _words(str(text)))][:_MAX_WORDS]
    hashed: set[Path] = set()
    with suppress(RuntimeError):  # there is no home
        first = base / Path(_filled(str(fields.get("cwd") or "."))).expanduser()
        for start in (first, *(first / name for name in names)):
            for file in _files_named(start, names):
                if file in hashed or not file.is_relative_to(base):
                    continue
                hashed.add(file)
                with suppress(OSError), file.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                    yield readable(file.relative_to(base).as_posix()), digest


def _files_named(start: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files that a program started in a folder may mean by a name."""
    with suppress(OSError, ValueError):  # no name of a file
        if not start.is_dir():
            return
    for name in ("", *names):
        for end in _ENDS:
            with suppress(OSError, ValueError, RuntimeError):
                file = Path(os.path.realpath((start / name).expanduser().as_posix() + end))
                if file.is_file():
                    yield file


def _words(text: str) -> Iterator[str]:
    """Yield the text, and all in it that could name a file: `server.py` of `--file=server.py`."""
    filled = _filled(text)
    for word in (filled, *re.split(r"[\s=,:;'\"<>&|()@]+", filled)):
        yield word
        if "." in word:  # a module: `python -m tools.server`
            yield word.replace(".", "/")


def _filled(text: str) -> str:
    # `$PWD` is the folder that the server starts in.
    text = text.replace("$PWD", ".").replace("${PWD}", ".")
    return _VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2] or "", text)


def _list_of(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _config_files(project: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the entries of the person's own files, then those of the project.

    A file is read only if it is needed, so that a broken one blocks no server of those before it.
    """
    files = (*_user_files(), project / PROJECT_FILE)
    yield from ((path, _read_entries(path)) for path in files if path.is_file())


def _user_files() -> tuple[Path, ...]:
    """The person's own files; an entry of the first one wins.

    The second one differs only if XDG_CONFIG_HOME is set, which was not read here before.
    """
    folders = (config_folder(), Path.home() / ".config" / "nbagent")
    return tuple(folder / "mcp.json" for folder in dict.fromkeys(folders))


def _read_entries(path: Path) -> dict[str, Any]:
    """Servers in a file by name, without the disabled ones."""
    try:
        with path.open("rb") as file:
            document = json_object(json.loads(file.read(_MAX_FILE_BYTES))) or {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); correct it") from None
    entries = json_object(document.get("mcpServers"))
    if entries is None or not is_storable_json(entries):
        raise UsageError(
            f'{path} has no MCP servers; write {{"mcpServers": {{"name": '
            '{"command": "…", "args": […]}}}'
        )
    return {
        name: entry
        for name, entry in entries.items()
        if (json_object(entry) or {}).get("disabled") is not True
    }


def _server_from_entry(path: Path, name: str, entry: Any, *, cwd: Path | None = None) -> McpServer:
    try:
        fields = json_object(_fill_variables(entry)) or {}
        args = fields.get("args", [])
        if fields.get("type", "stdio") not in _TYPES or not isinstance(args, list):
            raise UsageError("give command and a list of args, or url and the type http")
        command, folder = cast("Any", fields.get("command")), fields.get("cwd")
        return McpServer(
            name,
            command=[command, *cast("Any", args)] if args else command,
            env=fields.get("env"),
            cwd=path.parent / Path(str(folder)).expanduser() if folder else cwd,
            url=fields.get("url"),
            headers=fields.get("headers"),
        )
    except UsageError as error:
        raise UsageError(f"{path}, mcpServers.{name}: {error.message}") from None


def _fill_variables(value: Any) -> Any:
    """Fill the variables in all texts of a JSON value."""
    if isinstance(value, dict):
        return {key: _fill_variables(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_fill_variables(item) for item in cast("list[Any]", value)]
    return _VARIABLE.sub(_variable_value, value) if isinstance(value, str) else value


def _variable_value(match: re.Match[str]) -> str:
    # An empty variable counts as missing, as `:-` of a shell treats it.
    value = os.environ.get(match[1]) or match[2]
    if value is None:
        raise UsageError(
            f"it needs the variable {match[1]}, which is not set; set it before the kernel starts"
        )
    register_value(match[1], value)
    return value
