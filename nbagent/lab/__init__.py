"""Many runs: a prompt, a tool set or a model on a whole table, and what the answers tell.

Inside, imports go: runs → cases → scorers → … → batch. A single run is started by `session`.
"""
