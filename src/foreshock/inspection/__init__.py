"""Looks at a log after the fact: alarms, the episodes they form, and what class of run it is."""
