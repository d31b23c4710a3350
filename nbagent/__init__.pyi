# The public names, each with the module that defines it. `__init__.py` resolves them from this
# file (lazy_loader), so a new public name is one line here. The four modules at the end are
# resolved in `__init__.py`, because lazy_loader knows no other name for a module.

import typing

import nbagent.charts as plot
import nbagent.contracts.events as events
import nbagent.lab.judge_templates as judges
import nbagent.providers.offline as offline

from .agent import Agent as Agent
from .chat_client import Client as Client
from .chat_client import client as client
from .comparison import compare as compare
from .comparison import history as history
from .contracts.approval import PersonAnswer as PersonAnswer
from .contracts.approval import Question as Question
from .contracts.errors import EngineError as EngineError
from .contracts.errors import ModelError as ModelError
from .contracts.errors import NbagentError as NbagentError
from .contracts.errors import StoreError as StoreError
from .contracts.errors import ToolError as ToolError
from .contracts.errors import UsageError as UsageError
from .contracts.limits import ToolLimits as ToolLimits
from .contracts.messages import FilePart as FilePart
from .contracts.messages import ImagePart as ImagePart
from .contracts.messages import Message as Message
from .contracts.messages import ToolCall as ToolCall
from .contracts.model import ChatChunk as ChatChunk
from .contracts.model import ChatRequest as ChatRequest
from .contracts.model import ChatResponse as ChatResponse
from .contracts.model import ModelInfo as ModelInfo
from .contracts.model import ProviderConfig as ProviderConfig
from .contracts.model import ToolSpec as ToolSpec
from .contracts.model import Usage as Usage
from .contracts.policy import ToolPolicy as ToolPolicy
from .contracts.ports import ToolHost as ToolHost
from .contracts.records import ToolResult as ToolResult
from .contracts.tools import PreparedCall as PreparedCall
from .contracts.tools import ToolContext as ToolContext
from .contracts.tools import ToolOutcome as ToolOutcome
from .frames import messages as messages
from .frames import models as models
from .frames import prompts as prompts
from .frames import read_notebook as read_notebook
from .frames import runs as runs
from .frames import scores as scores
from .frames import tool_runs as tool_runs
from .frames import transitions as transitions
from .frames import turns as turns
from .lab.judges import judge as judge
from .lab.jury import jury as jury
from .lab.review import score as score
from .lab.saved_results import read_batch as read_batch
from .lab.scorers import Score as Score
from .lab.scorers import scorer as scorer
from .lab.stored_batch import batch as batch
from .notebook.panel import panel as panel
from .run import Run as Run
from .run import forget as forget
from .run import open_run as open_run
from .run_tree import session_tree as session_tree
from .settings.sources import configure as configure
from .store.audit import verify_audit as verify_audit
from .store.dataframes import expand as expand
from .tools.functions.definition import tool as tool
from .tools.mcp.config import mcp as mcp
from .workflow.agents import load_agent as load_agent
from .workflow.package import load_package as load_package

__all__ = ["events", "judges", "offline", "plot"]
__version__: str

def load_ipython_extension(ipython: typing.Any) -> None: ...
def unload_ipython_extension(ipython: typing.Any) -> None: ...
