"""CapacityPlans: decided on the live fleet, written into their status, and what models take from them.

- `view`: a plan as the cache keeps it. `canary`: what a Rollout proves of a revision.
- `reconciler`: from a key to one status write, if anything changed. `guidance`: the model's side.
"""
