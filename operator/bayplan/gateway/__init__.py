"""The gateway: an OpenAI-compatible streaming proxy around the admission core of `planning.admission`.

`server` listens and `generations` serves one request from its first byte to its last: `bodies` and `requests` read it,
`tenants` says whose it is, `promptsize` how long it is, `pools` holds one admission core per model, `upstream` and
`relay` carry bytes, `sse` reads them beside. `endpoints` is what the gateway watches, `acknowledgements` what it tells
the operator, `evidence` and `exposition` what others may read. `planning.admission` is the only one that decides.
"""
