"""Reads a folder that grows while it is read.

`follow` has the user's options. Rank 0 looks for new files (`watcher`), by the rules of `watermark`, and for the files
of side tables with the matches of their rows (`late`). All ranks open them (`growing_files`, `late_side`), deal their
rows (`segment`, `followed_data`), and begin each extension of the data at the same step (`followed`).
"""
