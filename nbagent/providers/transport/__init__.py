"""Bytes between here and a model server: HTTP, streams, server-sent events."""
