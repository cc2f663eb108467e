"""Rollout: a new revision earns its traffic in stages and loses it when it is worse.

`machine.decide` is the decision; `policy` is what the user asks for, `state` what is stored between decisions, `world`
what was observed. `plan` is the one object that says which revision gets what. `surge` asks beforehand whether the
candidate fits, `paper` whether measurements permit touching a GPU at all, `cohort` who gets the candidate, `proof`
whether a rollback is over. What was measured is judged in `planning.gates`.
"""
