"""What happened: all threads write to the `recorder`, users get the `report`."""
