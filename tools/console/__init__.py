"""What every command shares on the terminal.

`options` reads what the user gives, `errors` end a command with a message, `terminal` shows reports and bars,
`files` writes reports and other files, whole or not at all, and `ranks` joins the ranks that torchrun started.
"""
