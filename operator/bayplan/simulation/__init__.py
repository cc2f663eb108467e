"""Engines driven by a clock that the caller owns: KV blocks, scheduler, step times.

Nothing here reads a clock, sleeps or draws randomness, so the same objects serve a discrete-event simulation of a
fleet, a benchmark of a million requests and a real-time server.
"""
