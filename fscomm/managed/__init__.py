"""Managed collision (MCH, MPZCH): tables whose rows belong to other ids over time. An extension: fscomm's core imports
nothing of it, except where modules are bound, and serves all other modules without this folder.

`guard` is what the engine and the ids worker ask: whether rows to which ids were mapped ahead are those of the forward.
`maps` map ids ahead, and record what that changed; `binding` stands in for the module's forward.
`requirements` says which modules can be served, and `trial_module` makes one for a trial. `cpu_kernels` train MPZCH on
the CPU, by the rules of `zero_collision`.
"""
