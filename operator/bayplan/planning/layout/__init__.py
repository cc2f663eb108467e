"""How one replica is split over GPUs: the engine's rules, the memory of each split, and the best of those that fit.

- `split`: sizes and pods. `rules`: what the engine refuses, with the next valid size.
- `links`: what ranks say to each other per step, over which link. `search`: the ranking of splits that fit.
- `pools`: the GPU products of a fleet. `modelnumbers`, `engineflags`: what is known of a spec's model and engine.
- `memorytext`: the memory of a spec under a split, and its words. `decision`: the layout of a spec on a product.
- `alternatives`: what would fit instead. `fleet`, `choice`: the founding text's decision over GPU counts alone.
"""
