"""Which row comes when; pure functions of units, seed, epoch and ranks.

`mix` orders the units of several sources; `deal` gives them to ranks, each a `stream` of its own; `progress` says where
a job stands.
"""
