"""How many replicas tokens ask for: demand from gateways and engines, the policy of a spec, and the decision."""
