"""Where what is decided goes: one file, one destination."""
