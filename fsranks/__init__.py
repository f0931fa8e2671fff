"""Ranks that know each other: who takes part, a board of notes, and gloo groups whose failures name ranks.

What fsdata and fscomm share; neither imports the other.
"""
