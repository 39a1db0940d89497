"""Public reports of failed training: is their cause named from what their readings show."""
