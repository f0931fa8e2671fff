"""The page of `freescale simulate`, and what the simulation adds to the page of a profile.

`page` puts together the `step_sections`, which draw `step_figures`.
"""
