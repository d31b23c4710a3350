"""Sources of settings: `configure`, environment variables, files, defaults.

Owns their order. What a project's file may set is in `project_file`; options of a call are applied
in `session`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import redact_json, register_environment
from nbagent.settings.options import Option, RunOptions, Settings, checked_value
from nbagent.settings.project_file import (
    PROJECT_FILE,
    IgnoredLine,
    ProjectTable,
    checked_table,
    read_project_table,
    read_toml,
)
from nbagent.settings.trust import TrustItem, config_folder, data_folder

V = TypeVar("V", RunOptions, Settings)
DEFAULT_PROVIDER = "openai"
"""Provider of a model id without one: most servers are compatible with it."""
_configured: dict[str, Any] = {}
_override: ContextVar[Settings | None] = ContextVar("nbagent_settings", default=None)
_first_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The value of a setting, and its source."""

    value: Any = field(repr=False)  # it may be secret
    source: str = "default"
    not_allowed: TrustItem | None = None
    """Value of a project's file that would apply here if the person had allowed it."""


def configure(**values: Any) -> None:
    """Set values for this process; None resets one. The same as `%agent config`.

    Raises:
        UsageError: a name is unknown or a value is not valid; nothing is changed then.
    """
    global _configured
    before = _configured
    now = before | {name: checked_value(name, value) for name, value in values.items()}
    _configured = {name: value for name, value in now.items() if value is not None}
    try:
        # Two valid values may exclude each other; better now than at a run.
        current_settings(without_project=project_file_error() != "")
    except UsageError:
        _configured = before
        raise


def current_settings(*, without_project: bool = False) -> Settings:
    """Return the settings that apply now.

    Args:
        without_project: True leaves out the project's file, to report on settings although it
            cannot be read. A run never does: its limits and rules would be missing.
    """
    override = _override.get()
    if override is not None:
        return override
    sources = setting_origins(without_project=without_project)
    values = {name: origin.value for name, origin in sources.items()}
    check_limits(values["max_turns"], values["max_requests"])
    return Settings(**values)


@contextmanager
def settings_override(settings: Settings) -> Generator[None]:
    """Use the settings of another process (of a batch's driver) in this context and its runs."""
    token = _override.set(settings)
    try:
        yield
    finally:
        _override.reset(token)


def setting_origins(*, without_project: bool = False) -> dict[str, Origin]:
    """Return the value and source of every setting, by name."""
    table = ProjectTable() if without_project else read_project_table(_working_folder())
    project, not_allowed = table.values, table.not_allowed
    sources: dict[str, Origin] = {}
    # Later sources override earlier ones.
    for source, values in (
        ("settings.toml", _from_user_file()),
        ("environment", _from_environment()),
        ("configure", _configured),
    ):
        if "model" in values and "model" in sources:
            sources = _drop_server_settings(
                values["model"], sources, previous_model=sources["model"].value
            )
        sources |= {name: Origin(value, source) for name, value in values.items()}
    # Without a model of their own, the person's server settings (LLM_BASE_URL, LLM_API_KEY) belong
    # to an OpenAI-compatible server.
    if "model" in project and "model" not in sources:
        previous = f"{DEFAULT_PROVIDER}:"
        sources = _drop_server_settings(project["model"], sources, previous_model=previous)
    merged = {
        name: _merge_project(sources.get(name) or Origin(row.default), row, project)
        for name, row in Settings.rows().items()
    }
    origins = {
        name: replace(origin, not_allowed=not_allowed.get(name))
        if origin.source == "default"
        else origin
        for name, origin in merged.items()
    }
    return {**origins, "max_turns": _within_max_requests(**origins)}


def _within_max_requests(max_turns: Origin, max_requests: Origin, **others: Origin) -> Origin:
    """If only max_requests was lowered, lower max_turns to it.

    A project that lowers it must not make every run an error for a person whose own max_turns is
    larger.
    """
    is_free = max_turns.source == "default" or PROJECT_FILE in max_requests.source
    if not is_free or max_turns.value <= max_requests.value:
        return max_turns
    return replace(
        max_turns, value=max_requests.value, source=f"{max_requests.source} (max_requests)"
    )


def unused_project_items() -> list[TrustItem]:
    """Return the items of the project's file that would apply now if the person allowed them."""
    # With an override, the settings are those of another process.
    if _override.get() is not None or not read_project_table(_working_folder()).not_allowed:
        return []
    return [origin.not_allowed for origin in setting_origins().values() if origin.not_allowed]


def project_file_items() -> list[TrustItem]:
    """Return all items of the project's file that the person can allow."""
    return list(read_project_table(_working_folder()).items.values())


def ignored_project_lines() -> tuple[IgnoredLine, ...]:
    """Return the lines of the project's file that are never used."""
    return () if _override.get() is not None else read_project_table(_working_folder()).ignored


def project_file_error() -> str:
    """Return why no run can start with the project's file; empty if one can."""
    try:
        read_project_table(_working_folder())
    except UsageError as error:
        return error.message
    return ""


def _drop_server_settings(
    model: str, sources: dict[str, Origin], previous_model: str
) -> dict[str, Origin]:
    """Drop settings that belong to another provider's server (base URL, key, headers).

    Otherwise a key from the environment would be sent to the provider of the new model.
    """
    if provider_of(model) == provider_of(previous_model):
        return sources
    rows = Settings.rows()
    return {name: origin for name, origin in sources.items() if not rows[name].server_specific}


def provider_of(model: str) -> str:
    """Return the provider of a model id; a name without one means an OpenAI-compatible server."""
    name, colon, _ = model.partition(":")
    return name if colon else DEFAULT_PROVIDER


def _merge_project(origin: Origin, row: Option[Any], project: Mapping[str, Any]) -> Origin:
    """Merge the person's value with a project's: an allowed default, or a value that tightens."""
    if row.name not in project:
        return origin
    value: Any = project[row.name]
    if row.project != "tighten":
        return Origin(value, PROJECT_FILE) if origin.source == "default" else origin
    if isinstance(value, tuple):
        value = tuple(dict.fromkeys((*origin.value, *cast("tuple[str, ...]", value))))
    elif origin.value is not None:
        value = min(origin.value, value)
    if value == origin.value:
        return origin
    source = PROJECT_FILE if origin.source == "default" else f"{origin.source} and {PROJECT_FILE}"
    return Origin(value, source)


def check_limits(max_turns: int, max_requests: int) -> None:
    """Raise UsageError if max_requests would end a run before max_turns pauses it."""
    if max_turns > max_requests:
        raise UsageError(
            f"max_turns={max_turns} is larger than max_requests={max_requests}; lower it, or raise "
            f"the other with nbagent.configure(max_requests={max_turns}), and in {PROJECT_FILE} if "
            "that file sets it"
        )


def store_home() -> Path:
    """Return the folder of the store: `NBAGENT_HOME`, else `.nbagent` beside the notebook.

    Links to the folder that the person chose are resolved here; below it no link is followed.
    """
    chosen = os.environ.get("NBAGENT_HOME")
    if chosen:
        return Path(os.path.realpath(to_path(chosen, "NBAGENT_HOME")))
    return project_folder() / ".nbagent"


def private_folders() -> list[Path]:
    """Return the person's folders of nbagent, which no tool reaches: configuration and data."""
    folders: list[Path] = []
    with suppress(RuntimeError):  # there is no home
        folders.append(config_folder())
    with suppress(RuntimeError):
        folders.append(data_folder())
    return folders


def to_path(value: Any, name: str) -> Path:
    """Convert a value to a path. Raises UsageError if it is not one."""
    try:
        return Path(value).expanduser()
    except (TypeError, RuntimeError) as error:  # no text or path; `~name` of an unknown user
        raise UsageError(
            f"{name}={value!r} is not a path ({error}); give a folder or file"
        ) from None


def named_path(value: Any, name: str, *, base: Path | None = None) -> Path:
    """Convert a path that a person wrote, below the project or `base`, to an absolute one.

    Below the project links stay in it, to be refused: whoever made the project made them. Elsewhere
    the person's own links are resolved.
    """
    path = Path(os.path.normpath((base or project_folder()) / to_path(value, name)))
    return path if path.is_relative_to(project_folder()) else Path(os.path.realpath(path))


def project_folder() -> Path:
    """Return the folder of `@project`: the working folder at the process's first use of it.

    A kernel starts in the folder of its notebook.
    """
    global _first_folder
    # Remembered: a later os.chdir must not split the history into two stores.
    if _first_folder is None:
        _first_folder = _working_folder()
    return _first_folder


def _working_folder() -> Path:
    try:
        # Resolved once: Windows keeps a link in the working folder.
        return Path(os.path.realpath(Path.cwd()))
    except FileNotFoundError:
        raise UsageError("the working folder was deleted; os.chdir to another one") from None


@contextmanager
def fresh_settings() -> Generator[None]:
    """Forget configured values and the start folder in this context. For tests."""
    global _configured, _first_folder
    before = _configured, _first_folder
    _configured, _first_folder = {}, None
    try:
        yield
    finally:
        _configured, _first_folder = before


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, row in Settings.rows().items():
        for variable in row.variables:
            if text := os.environ.get(variable, "").strip():
                values[name] = row.checked(text, variable)
                break
    return values


def _from_user_file() -> dict[str, Any]:
    file = config_folder() / "settings.toml"
    return checked_table(read_toml(file), file.name) if file.is_file() else {}


def without_secrets(values: V) -> V:
    """Redact known secrets in the values, except in those that only the server gets."""
    register_environment()
    rows = values.rows()
    redactable = {
        name: value for name, value in values.explicit.items() if not rows[name].server_specific
    }
    return values.with_changes(**redact_json(redactable))
