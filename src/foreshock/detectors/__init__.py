"""Pure rules over one signal: one file, one rule."""
