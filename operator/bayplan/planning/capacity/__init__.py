"""A CapacityPlan decided: one model record feeds memory, layout, benchmark, placement, admission and scaling.

- `inputs`: what a decision is made on. `model`: which model it is about, and what contradicts it.
- `decide`: sizing, placement, cost, bounds. `evaluators`: the claims. `verdicts`: the conditions.
- `status`: the decision as `CapacityPlan.status`, with the digest of the report.

The operator and `bayplan plan` call the same function, so their verdicts are the same.
"""
