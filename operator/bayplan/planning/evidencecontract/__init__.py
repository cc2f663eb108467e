"""The evidence contract: what must be proven is stated apart from what was observed, and every proof is a run decision.

- `claims`: the claims, what each rests on, and how one can fail to be earned.
- `contract`: requirements, inputs and evaluators → a report.
- `judging`: what a decision must say to earn its claim. `scalingloop`: the loop behind `queue-scaling`.
- `canonical`: one form of a report for equal inputs, and its digest.

Source: the founding chapter's capstone (lesson 13), and the answers to its exercise 13.
"""
