"""`bayplan plan` and `bayplan inventory`: the operator's verdicts without the operator.

- `document`: a saved or live cluster, reduced to what decisions use. `collect`: read it from a cluster.
- `manifests`: what is to be planned. `evaluate`: the verdicts. `render`: table, JSON, JUnit.
"""
