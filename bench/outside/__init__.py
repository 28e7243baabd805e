"""velo as benches that others wrote see it: a folder a project, each to be put into a checkout of it.

``python -m bench outside`` does that, and writes the page of what their runners said.
"""
