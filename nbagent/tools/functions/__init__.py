"""Python functions as tools: their definition, the check of arguments, running, the outcome."""
