"""What happened in a run: summaries for a terminal, for tools, and as one HTML page.

summary.py    a run directory's journal as one value; pure
incidents.py  one incident of it
words.py      the sentences
clean.py      makes what a run directory holds harmless to show
curves.py     readings of all attempts as curves
charts.py     curves as Bokeh figures
html.py       the page, around page.html.jinja
text.py       the same for a terminal
"""
