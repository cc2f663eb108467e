"""Admission: a request reserves its worst plausible footprint on one replica before it costs GPU memory.

`core.AdmissionCore` decides for one pool of interchangeable replicas (the serving pods of a model, or one arm of its
rollout). It is synchronous and knows no clock: callers pass monotonic nanoseconds. `records` holds what goes in and
comes out, `sheds` every refusal, `ledger` who holds what, `waiting` the bounded queue, `fairness` whose turn it is,
`identities` the idempotency keys, `forecast` how long things take.
"""
