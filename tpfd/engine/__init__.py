"""Trio tasks that run executions: they ask ``tpfd.core`` what to do and do it."""
