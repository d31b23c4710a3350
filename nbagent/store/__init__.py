"""The store of runs, the audit log beside it, and the DataFrames that are read from the store.

Nothing is imported here: sqlite3 is imported in `connections` only, pandas in
`dataframes` only.
"""
