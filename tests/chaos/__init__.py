"""Chaos: workers are killed and frozen while producers go on; an audit counts after it.

::

    plan ──▶ scenario ──▶ crew: starts, kills, freezes, thaws and restarts
                │           ├─ worker     runs kinds (the jobs), with faults inside
                │           ├─ producer   business rows + enqueue, journal on disk
                │           └─ steward    cancels, retries, pauses
                └──▶ audit: SQL over the witness's log, the journals, the tables

The **witness** is a trigger of this test on the job table: it writes down every change
of every row, so the audit judges the history by itself, not by what workers say.
"""
