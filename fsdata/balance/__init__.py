"""How a global batch is balanced over the ranks.

`options` are the user's; a `cost` model weighs samples, `autotune` weighs ranks; `packing` plans, `exchange` moves the
samples, and `rebalance` does the same around any loader.
"""
