"""`freescale check`: everything in the data that a loader would stop at.

`command` loads the schema; a `source_check` lists what fsdata notes as it reads a source; `report` makes the document
and tables of it.
"""
