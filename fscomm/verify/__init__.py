"""An extension: a trial of the installed versions, before they are trusted with a model.

`trial` trains small modules, which `trial_modules` makes, plainly and served, and compares them; `passed_trials` keeps
on disk which kinds of modules need no further trial.
"""
