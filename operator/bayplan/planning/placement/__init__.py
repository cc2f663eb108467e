"""Where replica groups go: the fleet as nodes, claims and quotas, and the choice of whole groups by topology.

- `nodes`, `topology`, `gpus`: reading nodes. `inventory`: what is free. `quota`: what a namespace may still take.
- `group`: what is asked. `eligibility`: which nodes could take a pod. `search`: the ranking of sets of them.
- `place`: one group. `fleet`: all replicas of a model. `apart`: those that are compared.
- `wording`: why, or what was missing.
"""
