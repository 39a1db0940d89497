"""Reference models, real text, the demo."""
