"""What happened: all threads write to the `recorder`, users get the `report`. Times are taken by `host_times`, or on a
device by `stream_times`."""
