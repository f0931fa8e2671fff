"""Ways to move rows between ranks: each is a `transport`, by its name made in `opening`.

Which one the ranks take: `capabilities` reads what a rank offers, `choice` says what each transport needs and which is
the best, `selftest` proves it while `spin` holds every multiprocessor. `handshake`: what ranks tell each other on the
host. `gloo` over TCP; `staged` through host memory; `ring` by copy engines; `nccl` with and without kernels. `cutting`:
how an operation is cut into what fits.
"""
