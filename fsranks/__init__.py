"""Ranks that know each other: who takes part, a board of notes, and gloo groups whose failures name ranks.

What fsdata and fscomm share; neither imports the other. `rank_context` says which rank this is and lets ranks compare
what they were given, on a `notice_board`; a `control_group` carries small exchanges; `local_processes` tells who of
this machine still runs; `errors` name ranks; `torch_notices` keeps notices of torch away.
"""
