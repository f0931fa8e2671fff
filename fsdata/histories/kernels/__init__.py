"""`histories` searches the events of a key before a time, and merges pools of events; `lookups` looks up ids in
dimension tables; `resolve` copies the values of both into batches."""
