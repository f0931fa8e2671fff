"""Descriptions of data outside of Python: `infer_schema` guesses a schema from files, `toml_file` reads sources."""
