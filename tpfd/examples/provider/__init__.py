"""The mock payment provider of csv-payments: an outside actor in a process of its own.

It is asked about payment records and answers, after a while, twice, too late or never, as it is told. `decision` says
what it answers (pure), `desk` when, `log` keeps its books. `session` attaches to a daemon over WebSocket, `hook` is
called by webhook, `broker` stands behind SQS or Kafka.
"""
