"""Scenes of the demo, by what they are about. `e2e.scenarios.demo.SCENES` says which are played, and in which order."""
