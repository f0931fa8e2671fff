"""What every command shares on the terminal.

`options` reads what the user gives, `errors` end a command with a message, `terminal` shows tables and bars,
`files` writes files that are whole or not there, and `ranks` joins the ranks that torchrun started.
"""
