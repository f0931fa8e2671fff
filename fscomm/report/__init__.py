"""What happened: all threads write to the `recorder`, users get the `report`, which begins with
what was `served`, and can open the `trace`. A reason is said with the `user_line` it belongs to."""
