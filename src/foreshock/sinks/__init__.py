"""Destinations for readings and alarms: one file, one destination."""
