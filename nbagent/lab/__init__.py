"""Many runs: a prompt, a tool set or a model on a whole table, with scores and comparisons.

A `batch` has planned cases (`plan`: rows × variants × repeats) and their states (`case_state`, the
only state). Its `runner` lets an executor make the runs within a `budget`: `local`, `remote` on a
Dask cluster, or `provider_batch`, whose answers come from the batch API of a `provider_target`. It
has the answers scored (`scoring`) by `scorers` and `judges`, or by a person (`review`). Its
`results` are read as `frames`, compared by `statistics` and drawn by `batch_figures`; a
`stored_batch` is opened by its name from its `batch_document`.

Its results are saved as a file (`baseline_files`, `saved_results`) or in a notebook
(`saved_notebook`), joined with those of another batch (`joined_results`) and checked (`gate`, in a
shell by a `gate_file`).
"""
