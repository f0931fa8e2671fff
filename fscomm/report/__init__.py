"""What happened: all threads write to the `recorder`, users get the `report`, which begins with
what was `served`, and can open the `trace`."""
