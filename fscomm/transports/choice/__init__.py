"""Which transport the ranks take.

`capabilities` reads what a rank offers; `requirements` says what each transport needs; `rules` chooses; `agree` does so
on all ranks and proves it by a `selftest`, which sends `selftest_rows` while `busy_device` holds every SM by `spin`.
"""
