"""Stores for frameworks that keep documents beside their vectors, each in its own module.

``velo.integrations.langchain``, ``velo.integrations.haystack`` and ``velo.integrations.llama_index`` need
their framework: ``pip install 'veloann[langchain]'``, ``'veloann[haystack]'`` or ``'veloann[llama-index]'``.
"""
