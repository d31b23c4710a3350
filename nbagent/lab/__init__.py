"""Many runs: a prompt, a tool set or a model on a whole table, with scores and comparisons.

A `batch` has planned cases (`plan`: rows × variants × repeats) and their states (`case_state`). Its
`runner` lets an executor make the runs (`local`, or `remote` on a Dask cluster, which sends each as
a `remote_task`). `scorers`, `judges` and a person (`review`) score the answers. Its `results` are
read as `frames`, compared by `statistics` and drawn by `batch_figures`; a `stored_batch` is opened
by its name from its `batch_document`.
"""
