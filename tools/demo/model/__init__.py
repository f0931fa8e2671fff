"""The demo's model.

`features` says what it knows of the data, `sequence_model` is the model, `attention` its inner part, and
`fingerprint` identifies its weights after training.
"""
