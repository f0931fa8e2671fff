"""All threads of the engine write to the `recorder`; users read the `report`, which begins with a `verdict`. Times are
taken by `host_times`, or by `stream_times` on a device that the host runs ahead of; `step_table` adds them up."""
