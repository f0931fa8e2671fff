"""`histories` finds what had happened by a time, and merges kinds of events; `lookups` looks ids up; `resolve` copies
what both find."""
