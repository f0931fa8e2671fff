"""`freescale measure-links`: how fast the ranks of a job exchange, and what it costs the compute beside it.

`command` joins the ranks, `exchange_times` measures, `hardware_file` fits and writes what `simulate --hardware` reads.
"""
