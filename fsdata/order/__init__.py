"""Which row comes when; pure functions of units, seed, epoch and ranks.

`mix` orders the units of several sources; `deal` gives them to ranks; `progress` says where a job stands.
"""
