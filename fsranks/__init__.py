"""What fsdata and fscomm share, which do not import each other: how ranks find, compare and blame each other.

- `rank_context`: which rank this is. `meeting`: ranks compare what they were given.
- `job_store`: notes between the ranks, through the store of the default process group.
- `control_group`: small exchanges over gloo. It connects (`connecting`), brings a message of every rank to every rank
  (`messages`), finds out which rank is lost (`diagnosis`).
- `machine`: which processes of this machine run, what is done when this one ends, and how much memory is free.
- `network`: the store, connections, processes and clock of a rank; tests play all of these.
- `observers`: who hears of exchanges and waits while they happen.
- `errors`: the errors that name ranks. `libraries`: what torch and numba do, and users are kept from.
"""
