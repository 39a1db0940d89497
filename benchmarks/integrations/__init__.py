"""What every integration can do, and what it costs, measured with the real packages."""
