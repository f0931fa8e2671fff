"""Extensions and what they extend, put together: the one folder that knows which argument needs which extension.

Each extension is imported when an argument asks for it. `reading` is what rows are read with; `stepping`, above the
nodes, is what makes steps of them.
"""
