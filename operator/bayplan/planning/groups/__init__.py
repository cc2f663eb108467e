"""Replica groups as they live: which pods are one group, what is to be made, drained or removed, and the recheck.

- `assignment`: what a group carries of its reservation. `members`: pods as groups with a state.
- `replicas`: what to do next. `victims`: who leaves first. `reservation`: the recheck before a release.
"""
