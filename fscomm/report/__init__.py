"""All threads of the engine write to the `recorder`; `event_times` finds which times are exposed. Users read the
`report`, which begins with a `verdict`."""
