"""The only place that talks to Kubernetes: client port, reflectors and caches, work queue, Lease, events, Kopf."""
