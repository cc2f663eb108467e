"""One folder per kind, and one module per thing that kinds share: the fleet, pods, gateways, statuses."""
