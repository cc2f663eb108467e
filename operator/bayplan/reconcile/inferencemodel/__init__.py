"""The InferenceModel reconciler: from a spec to whole groups of pods that serve, and a status that explains.

- `reconciler`: from a key to one pass. `modelpass`: compare, write, look again. `tools`: what a pass works with.
- `plan`, `revisions`, `course`: what should be. `reserve`, `release`, `groups`, `warmup`, `drain`: the life of a group.
- `manifests`, `podpatches`, `children`, `inspection`: the objects.
- `waking`: what makes a model be looked at again.
- `view`, `status`, `statuswriter`, `evidence`: what is said.
"""
