"""All threads of the engine write to the `recorder`; users read the `report`, which begins with a `verdict`. Which times
are exposed is found by `event_times`."""
