"""The report: what happened, as one HTML file."""
