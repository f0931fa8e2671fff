"""The spinning kernel on CPU tensors, through Triton's interpreter: TRITON_INTERPRET=1. Prints how it ended."""

import torch

from fscomm.transports.spin import launch, programs

flag, arrived = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
launch(flag, arrived, count=3, limit=1 << 40)  # the flag ends it: this many turns would take days
print(int(arrived))
flag.zero_()
launch(flag, arrived, count=2, limit=50)  # nobody sets the flag: the limit ends it
print(int(arrived))
print(programs(132, 2048), programs(82, 1536))
