"""How a model builds its features from a batch, found by contents: then they can be announced. Can be deleted.

Without it, features are found where a KeyedJaggedTensor of the batch is what the module gets, or by `features=`.
"""
