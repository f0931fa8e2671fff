"""What every command shares on the terminal.

`options` reads what the user gives, `errors` end a command with a message, `terminal` shows tables and bars,
and `files` writes files that are whole or not there.
"""
