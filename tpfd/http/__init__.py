"""The HTTP and WebSocket edge: parse, authorise, answer. It decides nothing about executions."""
