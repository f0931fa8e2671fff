"""Ranks on links of a known speed: one network namespace per rank, a bridge between, a token bucket on every link."""
