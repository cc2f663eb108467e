"""Gates: what a candidate's measurements must meet.

`records` holds a gate and its result, `measures` what is known of one arm, `thresholds` the judgement: limits on
counts, in the one module that another statistic would replace. `windows` and `counts` make a stage's counts of the
gateways' cumulative counters, `validity` finds gates that nothing can judge, `quality` and `jsonschema` score answers
to a prompt set, `release` judges finished summaries.
"""
