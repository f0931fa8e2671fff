"""All that imports torchrec: `modules` finds tables in a model, and makes the model that a planner reads from tables.

`planning` drives TorchRec's planner. `sharding` writes plans as JSON, and loads them.
"""
