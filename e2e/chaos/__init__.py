"""Faults between operator and API server, decided by a seed; what must hold under them; and the runs that prove it.

`python -m e2e.chaos` runs the campaigns with real processes, `tests/chaos` shorter ones with operators in the test
process. Neither knows a controller: a new one joins by what it writes.
"""
