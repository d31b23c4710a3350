"""The loop *model → tool calls → results → model*, as an async generator of events.

It knows contracts only: clients, hosts, people and clocks come to it through ports.
Inside, imports go: size, repeats → request, calls, plan → room → turn → loop.
"""

from nbagent.engine.calls import run_call
from nbagent.engine.loop import first_request, run_engine
from nbagent.engine.plan import EnginePlan

__all__ = ["EnginePlan", "first_request", "run_call", "run_engine"]
