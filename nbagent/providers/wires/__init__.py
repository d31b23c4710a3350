"""The request and answer formats of servers, without any I/O."""
