"""All that knows IPython and Jupyter: how a run is shown, and the magics that start one.

Inside, imports go: kernel, visible, markdown_tree → view_types → view_turn → view_state →
live_state → static_text → static_html, plain_lines → live_view → surface → commands;
`magics` imports none of them before it is used.
"""
