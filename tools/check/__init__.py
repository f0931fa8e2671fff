"""`freescale check`: everything in the data that a loader would stop at.

`command` loads the schema; `findings` are what a `source_check` makes of what fsdata notes as it reads a source, and
`report` says what is shown.
"""
