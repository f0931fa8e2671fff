"""Not written in Python: `infer_schema` guesses a schema from files, a `toml_file` says sources and schema."""
