"""The mock payment provider of csv-payments: an outside actor in a process of its own.

It attaches to a daemon over WebSocket, is asked about payment records and answers, after a while, twice, too late or
never, as it is told. `decision` says what it answers (pure), `desk` when, `log` keeps its books, `session` talks.
"""
