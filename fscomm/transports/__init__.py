"""Ways to move rows between ranks."""
