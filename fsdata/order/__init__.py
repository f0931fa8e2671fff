"""The order of the rows of an epoch: pure functions of units, seed, epoch and ranks.

`mix` orders the units of several sources, `deal` assigns them to ranks as one `stream` each, and `progress` is the
position of a job in these streams. `mixture` mixes the rows that are left when weights or sources change, `epoch`
computes streams over all such changes, and `changes` decides which of them a saved state allows.
"""
