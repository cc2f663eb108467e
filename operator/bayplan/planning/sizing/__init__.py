"""How many replicas a workload needs, which limit binds, what it costs, and which bounds that breaks.

- `records`: workload classes, what one replica was measured to do, resilience, limits, price.
- `load`: demand and the dimensions that turn it into replicas.
- `resilience`: replicas that survive the loss of a failure domain, and maintenance, where they really are.
- `cost`: per hour and per million tokens. `limits`: what is exceeded, each by its own name.

No bound ever lowers a number. Source: the founding chapter's lesson 12, formulas and order unchanged, in exact numbers.
"""
