"""`Sequence(sample=StochasticLength(...))`: which rows are shortened is decided in `stochastic_length`, which of their
events stay in `kernels/chosen`; `sampled_rows` is the stage of decoding that does both.
"""
