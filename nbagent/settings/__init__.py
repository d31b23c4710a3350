"""Settings and run options: the table of options, their types, and where values come from."""
