"""What a profile recommends: where to cut histories, how to balance, what that costs, and code to paste.

`cuts` finds where histories may be cut, `recommend` chooses settings, `loader_code` writes them as code, and `tradeoff`
shows what other batch sizes and cuts cost.
"""
