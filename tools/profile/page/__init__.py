"""The page of a profile.

`page` joins `settings_section`, `tradeoff_section`, `length_sections` with `length_figures`, `straggler_sections` with
`straggler_figures`, and `sharing_section` with `sharing_figures`; collisions and steps come from their own
commands.
"""
