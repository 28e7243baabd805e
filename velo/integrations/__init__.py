"""Stores for frameworks that keep documents beside their vectors, each in a module of its own.

``velo.integrations.langchain``, ``velo.integrations.haystack`` and ``velo.integrations.llama_index`` need the
framework that they are named for: ``pip install 'veloann[langchain]'``, ``'veloann[haystack]'`` or
``'veloann[llama-index]'``.
"""
