"""`python -m nbagent check gate.py`: is the prompt still as good as it was?"""

import pandas as pd
from refunds import V3, agent, exact

import nbagent

# Recorded answers: no key, no cost. With "auto" and a key, new requests are sent and recorded.
nbagent.configure(cache="replay", cassette="lab.jsonl")

batch = agent.map(
    pd.read_csv("refunds.csv"),
    "{{ message }}",
    key="id",
    system=V3,
    model="openai:gpt-5.4-mini",
    score=exact,
    name="gate",
)
check = {"min": {"exact": 0.8}, "not_worse_than": "baseline.json"}
