"""The loop *model → tool calls → results → model*, told as events to a port.

It knows contracts only: clients, hosts, people and clocks come to it through ports.
Inside, imports go: plan → overflow, request → limits → calls → turn → loop.
"""

from nbagent.engine.loop import first_request, run_engine
from nbagent.engine.plan import EnginePlan

__all__ = ["EnginePlan", "first_request", "run_engine"]
