"""What happened in a run or a log: summaries for a terminal, for tools, and as one HTML page.

Of a run that Foreshock recorded:

summary.py    a run directory's journal as one value; pure
incidents.py  one incident of it
html.py       the page, around page.html.jinja
text.py       the same for a terminal

Of a log that anyone wrote:

episode_words.py    its sentences
log_curves.py       its series as curves, and the stretch around an episode
blocks.py           charts made of characters; pure
small_charts.py     of an episode, of a whole run
diagnosis_text.py   for a terminal
diagnosis_html.py   the page, around diagnosis.html.jinja
compare.py          runs side by side (compare_result, together, compare_words, compare_text)

Of both:

words.py      the sentences
clean.py      makes what a run directory or a log holds harmless to show
curves.py     readings of all attempts as curves
charts.py     curves as Bokeh figures
page.py       how a page is rendered and written; page.css and parts.html.jinja are shared
"""
