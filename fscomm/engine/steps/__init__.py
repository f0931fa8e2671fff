"""The steps of the user's loop: those `in_loop` are announced, handed out, and trained on. `to_announce`
says for which modules rows are fetched ahead, `choice` which step a forward belongs to and how it would run,
`plain_runs` why one runs plainly.
"""
