"""Five public trainings, told with this tool: on their numbers, or on small reproductions."""
