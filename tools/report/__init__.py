"""What a command shows, and its HTML page.

A command makes a report of `blocks`, whose values `numbers` writes and whose figures `plots` draws; `closing` adds
skipped files, assumptions and terms; `page` makes HTML of it. The terminal shows the same report (`console.terminal`).
"""
