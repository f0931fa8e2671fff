"""The page of a profile.

`page` joins `settings_section`, `length_sections` with `length_figures`, and `straggler_sections` with
`straggler_figures`; collisions and steps come from their own commands.
"""
