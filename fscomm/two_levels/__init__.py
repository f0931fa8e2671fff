"""Rows in two levels: a row goes from its owner to another host once, and one of the ranks there passes it on."""
