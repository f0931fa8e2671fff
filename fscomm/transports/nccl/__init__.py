"""Over NCCL: `nccl`, the baseline; `padded`, even operations on registered buffers, its slots planned by `padding`.

`deadlines` finds whose fault it is when NCCL does not come back.
"""
