"""What engines say about themselves over HTTP: their stages, their load, their answers."""
